"""What the examples of parallel training share: the same Qwen3, trained on several workers and on one, compared.

The model file is that of examples/qwen3 and knows nothing of workers; the layout is in a YAML file beside each example.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np

import gt

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "qwen3")]
import framework  # noqa: E402

framework.choose(False)
import train  # noqa: E402
import weights  # noqa: E402

# How far a loss may lie from that of a single worker.
CLOSE = 1e-4


def arguments(doc, workers):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=workers, help="workers inside this process")
    parser.add_argument("--config", help="another YAML file for the signal `train`")
    parser.add_argument("--model-size", default="tiny", choices=["tiny", "small", "0.6B", "1.7B"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--auto", action="store_true", help="no file: the planner chooses (GT_AUTO_SHARD=1)")
    parser.add_argument("--json", action="store_true", help="compare with nothing and print the result as JSON")
    parser.add_argument("--alone", action="store_true", help="the same on one worker")
    return parser.parse_args()


class Run:
    """One training run: its losses, and what each worker did."""

    def __init__(self, args, step):
        gt.manual_seed(0)
        # Made inside the signal, so that no worker ever holds more than its part.
        with gt.signal.context("train"):
            self.model = gt.signal.apply(weights.fresh(args.model_size))
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=args.lr)
        samples = train.synthetic(self.model.config.vocab_size, args.batch_size * args.steps, args.seq_len)
        kept, early = [], min(2, args.steps - 1)
        before, start = self._busy(), time.perf_counter()
        for at in range(0, len(samples), args.batch_size):
            if len(kept) == early:
                # The first steps are those in which plans are made.
                gt.synchronize()
                before, start = self._busy(), time.perf_counter()
            batch = samples[at : at + args.batch_size]
            self.optimizer.zero_grad()
            kept.append(step(self.model, batch[:, :-1], batch[:, 1:]))
            gt.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        gt.synchronize()
        wall = time.perf_counter() - start
        self.seconds = wall / max(1, len(kept) - early)
        self.idle = [1 - (now - then) / wall for now, then in zip(self._busy(), before, strict=True)]
        self.losses = [float(loss) for loss in gt.stack(kept).tolist()]
        workers = gt.debug.get_worker_stats()["workers"]
        self.peaks = [worker["bytes_peak"] for worker in workers]
        self.lazy = [i for i, worker in enumerate(workers) if not worker["instructions"]]

    def _busy(self):
        return [worker["busy_seconds"] for worker in gt.debug.get_worker_stats()["workers"]]


def whole_batch(model, ids, targets):
    """The usual step: forward and backward of the whole batch."""
    with gt.signal.context("train"):
        loss = model.loss(tensor(ids), tensor(targets))
    loss.backward()
    return loss.detach()


def tensor(array):
    return gt.from_numpy(np.ascontiguousarray(array))


def alone():
    """The same run on a single worker, in a process of its own."""
    line = [sys.executable, *sys.argv, "--alone"]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the run on one worker failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def begin(args, file):
    """Workers, and what the signal `train` means on them."""
    if args.auto:
        os.environ["GT_AUTO_SHARD"] = "1"
    gt.gpu_workers(args.workers)
    if not args.auto:
        gt.load_config(args.config or HERE / file)


def main(doc, file, workers, step=whole_batch, more=None):
    """Trains on several workers and on one, and compares the losses; `more(run, single)` says what else to know."""
    args = arguments(doc, workers)
    single = None if args.json or args.alone else alone()
    if not args.alone:
        begin(args, file)
    run = Run(args, step)
    if single is None:
        print(json.dumps(dict(losses=run.losses, peaks=run.peaks, seconds=run.seconds)))
        return
    gaps = [abs(a - b) for a, b in zip(run.losses, single["losses"], strict=True)]
    count = sum(p.numel() for p in run.model.parameters())
    print(f"Qwen3 with {count:,} parameters, {len(run.losses)} steps on {len(run.peaks)} workers and on one")
    print(f"loss {run.losses[0]:.4f} -> {run.losses[-1]:.4f}, at most {max(gaps):.1e} from that of one worker")
    print(f"{run.seconds * 1e3:.1f} ms a step, {single['seconds'] * 1e3:.1f} ms on one worker")
    if more:
        more(run, single)
    if run.lazy and not args.auto:
        print(f"workers {run.lazy} had nothing to do: the file has no place for them")
    if len(run.lazy) >= len(run.peaks) - 1 > 0 and not args.auto:
        raise SystemExit("only one worker had something to do: nothing was compared")
    if not max(gaps) <= CLOSE:
        raise SystemExit(f"the losses differ by more than {CLOSE:g}")
