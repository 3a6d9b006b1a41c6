"""Trains Qwen3 on GT, or with --pytorch the same model file on PyTorch.

    python examples/qwen3/train.py --model-size tiny --steps 100
    python examples/qwen3/train.py --model DIR --data book.txt --save OUT

Without --data the samples are synthetic: each sequence counts on by a stride of its own, so the loss can fall.
"""

import argparse
import pathlib
import sys
import time

import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import framework  # noqa: E402


def synthetic(vocab, count, length, seed=0):
    """Sequences that start anywhere and go on by 1 to 8, modulo the vocabulary."""
    rng = np.random.default_rng(seed)
    start, stride = rng.integers(0, vocab, (count, 1)), rng.integers(1, 9, (count, 1))
    return (start + stride * np.arange(length + 1)) % vocab


def samples_of(ids, count, length, seed=0):
    """Pieces of a text, at random places."""
    ids = np.asarray(ids, np.int64)
    if len(ids) <= length:
        raise SystemExit(f"the text has {len(ids)} tokens, which is too short for sequences of {length}")
    starts = np.random.default_rng(seed).integers(0, len(ids) - length, count)
    return np.stack([ids[s : s + length + 1] for s in starts])


def batches(samples, size, epochs, seed=0):
    """Batches of all samples in a new order each epoch; the last one of an epoch may be smaller."""
    rng = np.random.default_rng(seed)
    for epoch in range(epochs):
        order = rng.permutation(len(samples))
        for at in range(0, len(order), size):
            yield epoch, samples[order[at : at + size]]


def train(model, samples, args, lib, say=print):
    """The training loop; gives the losses."""
    optimizer = lib.optim.AdamW(model.parameters(), lr=args.lr)
    losses, tokens, start = [], 0, time.perf_counter()
    for step, (epoch, batch) in enumerate(batches(samples, args.batch_size, args.epochs, args.seed)):
        if args.steps and step >= args.steps:
            break
        ids = framework.upload(np.ascontiguousarray(batch[:, :-1]))
        targets = framework.upload(np.ascontiguousarray(batch[:, 1:]))
        loss = model.loss(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        lib.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        tokens += ids.numel()
        if step % args.every == 0:
            rate = tokens / (time.perf_counter() - start)
            say(f"epoch {epoch}  step {step:5}  loss {losses[-1]:.4f}  {rate:8.0f} tokens/s")
            tokens, start = 0, time.perf_counter()
    return losses


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", action="store_true", help="run on PyTorch instead of GT")
    parser.add_argument("--model-size", default="tiny", choices=["tiny", "small", "0.6B", "1.7B"])
    parser.add_argument(
        "--model", type=framework.model_folder, help="start from a folder with config.json and *.safetensors"
    )
    parser.add_argument(
        "--data", type=framework.existing_file, help="a text file to train on; synthetic samples if absent"
    )
    parser.add_argument("--batch-size", type=framework.positive, default=4)
    parser.add_argument("--seq-len", type=framework.positive, default=128)
    parser.add_argument("--dtype", choices=framework.DTYPES, help="that of the weights, or float32, if absent")
    parser.add_argument("--epochs", type=framework.positive, default=1)
    parser.add_argument("--steps", type=framework.count, default=0, help="stop after so many steps")
    parser.add_argument("--num-samples", type=framework.positive, default=1000)
    parser.add_argument("--lr", type=framework.amount, default=1e-3)
    parser.add_argument("--seed", type=framework.count, default=0)
    parser.add_argument("--every", type=framework.positive, default=10, help="print every so many steps")
    parser.add_argument("--save", type=pathlib.Path, help="write the trained model to a folder, as Hugging Face does")
    args = parser.parse_args(argv)
    if args.save:
        try:
            args.save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--save: {error}")
    framework.choose(args.pytorch)
    framework.use_gpu()
    import weights

    lib = framework.lib
    lib.manual_seed(args.seed)
    model = weights.load(args.model, args.dtype) if args.model else weights.fresh(args.model_size, args.dtype)
    if args.data:
        text = weights.Text(args.model, model.config)
        ids = text.encode(args.data.read_text())
        samples = samples_of(ids, args.num_samples, args.seq_len, args.seed)
    else:
        samples = synthetic(model.config.vocab_size, args.num_samples, args.seq_len, args.seed)
    count = sum(p.numel() for p in model.parameters())
    print(f"Qwen3 with {count:,} parameters on {'PyTorch' if args.pytorch else 'GT'}, {len(samples)} samples")
    start = time.perf_counter()
    losses = train(model, samples, args, lib)
    took = time.perf_counter() - start
    total = len(losses) * args.batch_size * args.seq_len
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, {len(losses)} steps in {took:.1f} s, {total / took:.0f} tokens/s")
    if args.save:
        weights.save(model, args.save)
        print(f"saved to {args.save}")
    return losses


if __name__ == "__main__":
    main()
