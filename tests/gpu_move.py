"""Tensors between two workers of one host: what one worker made is used by the other, and comes back, unchanged.

Run it where a GPU is, with both workers on it:

    python tests/gpu_move.py [--backend cpu] [--mib 1 64 512]

Between GPUs of one host the bytes go from device to device (CUDA IPC). A line per size says how long a tensor took
there and back with all that is around it.
"""

import argparse
import sys
import time

import numpy as np
from system import System

import gt
from gt import ShardConfig, SignalConfig


def there_and_back(count, seed):
    """Seconds for a tensor to go to the other worker and back, and whether it came back right."""
    with gt.signal.context("first"):
        x = gt.arange(count).float() + float(seed)
    gt.synchronize()
    start = time.perf_counter()
    with gt.signal.context("second"):
        y = x * 2.0
    with gt.signal.context("first"):
        z = y + 1.0
    gt.synchronize()
    took = time.perf_counter() - start
    expected = (np.arange(count, dtype=np.float32) + np.float32(seed)) * 2 + 1
    return took, np.array_equal(z.numpy(), expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda", help="what the workers run on")
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 64, 512], help="sizes of tensors")
    args = parser.parse_args()
    system = System()
    failed = 0
    try:
        kind = ["--backend", args.backend] + (["--device", "0"] if args.backend == "cuda" else [])
        for i in range(2):
            system.add_worker(f"w{i}", *kind)
        system.wait(2)
        gt.connect(system.address)
        for name, worker in (("first", 0), ("second", 1)):
            gt.register_config(name, SignalConfig(shard=ShardConfig(axis=0, workers=[worker])))
        for mib in args.mib:
            count = mib * (1 << 18)
            runs = [there_and_back(count, seed) for seed in range(5)]
            right = all(good for _, good in runs)
            failed += not right
            took = min(seconds for seconds, _ in runs)
            speed = 2 * mib / 1024 / took
            print(f"{'ok' if right else 'BAD'} {mib} MiB there and back in {took * 1e3:.2f} ms, {speed:.1f} GiB/s")
        used = [w["programs"] for w in gt.debug.get_worker_stats()["workers"]]
        failed += min(used) == 0
        print("programs of the workers", *used)
        gt.disconnect()
    finally:
        system.stop()
    sys.exit(failed)


if __name__ == "__main__":
    main()
