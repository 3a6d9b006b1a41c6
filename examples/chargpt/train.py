"""Trains a GPT over the characters of Alice's Adventures in Wonderland and lets it go on.

    python examples/chargpt/train.py [--minutes 3] [--pytorch] [--dropout 0.1] [--prompt "Alice "]

The text (alice.txt) is by Lewis Carroll, 1865, and in the public domain.
"""

import argparse
import math
import pathlib
import sys
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import framework  # noqa: E402


class Text:
    """A text as numbers of its characters."""

    def __init__(self, path):
        text = pathlib.Path(path).read_text()
        self.characters = sorted(set(text))
        self.number = {c: i for i, c in enumerate(self.characters)}
        self.ids = np.array([self.number[c] for c in text])

    def encode(self, text):
        return [self.number[c] for c in text if c in self.number]

    def decode(self, ids):
        return "".join(self.characters[i] for i in ids)

    def batch(self, rng, size, length):
        """Pieces from random places, and the same one character on."""
        starts = rng.integers(0, len(self.ids) - length, size)
        pieces = np.stack([self.ids[s : s + length + 1] for s in starts])
        return np.ascontiguousarray(pieces[:, :-1]), np.ascontiguousarray(pieces[:, 1:])


def rate(done, peak, warm=0.03):
    """The learning rate after a part of the time: up in a line, down along a cosine."""
    if done < warm:
        return peak * (done / warm + 0.01)
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, (done - warm) / (1 - warm)))))


def train(model, text, args, lib):
    """Trains until the time or the steps are over; gives the mean loss of the last 20 steps."""
    optimizer = lib.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.99), weight_decay=0.01)
    rng = np.random.default_rng(args.seed)
    losses, start, step = [], time.perf_counter(), 0
    while True:
        elapsed = time.perf_counter() - start
        done = step / args.steps if args.steps else elapsed / (60 * args.minutes)
        if done >= 1 and losses:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate(done, args.lr)
        ids, targets = (framework.upload(part) for part in text.batch(rng, args.batch_size, model.config.context))
        loss = model.loss(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        lib.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % args.every == 0:
            print(f"step {step:5}  loss {losses[-1]:.3f}  {elapsed:6.1f} s", flush=True)
        step += 1
    mean = float(np.mean(losses[-20:]))
    print(f"{step} steps, mean loss of the last 20: {mean:.3f} nats, {elapsed / step * 1e3:.1f} ms per step")
    return mean


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", action="store_true", help="run on PyTorch instead of GT")
    parser.add_argument("--text", type=framework.existing_file, default=HERE / "alice.txt", help="the text to learn")
    parser.add_argument("--minutes", type=framework.above_zero, default=3.0)
    parser.add_argument("--steps", type=framework.count, default=0, help="train for so many steps instead")
    parser.add_argument("--batch-size", type=framework.positive, default=16)
    parser.add_argument("--lr", type=framework.amount, default=2e-3)
    parser.add_argument("--dropout", type=framework.share, default=0.0)
    parser.add_argument("--seed", type=framework.count, default=0)
    parser.add_argument("--every", type=framework.positive, default=50, help="print every so many steps")
    parser.add_argument("--prompt", default="Alice ")
    parser.add_argument("--characters", type=framework.count, default=300, help="how many to draw at the end")
    parser.add_argument("--temperature", type=framework.above_zero, default=0.8)
    args = parser.parse_args(argv)
    framework.choose(args.pytorch)
    framework.use_gpu()
    from model import CharGPT, Config

    lib = framework.lib
    lib.manual_seed(args.seed)
    text = Text(args.text)
    prompt = text.encode(args.prompt)
    if not prompt:
        parser.error("--prompt: expected at least one character that is in the text")
    model = CharGPT(Config(vocab_size=len(text.characters), dropout=args.dropout))
    count = sum(p.numel() for p in model.parameters())
    print(f"{count:,} parameters, {len(text.ids):,} characters of {len(text.characters)} kinds")
    loss = train(model, text, args, lib)
    ids = lib.tensor([prompt])
    drawn = model.eval().generate(ids, args.characters, args.temperature)
    print(f"\n{args.prompt}{text.decode([chosen.item() for chosen in drawn])}")
    return loss


if __name__ == "__main__":
    main()
