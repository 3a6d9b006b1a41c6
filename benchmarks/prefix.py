"""What starting programs early brings (C3): long programs that never repeat, with prefixes and without.

Each program is recorded once and looked at once; the two sides run in processes of their own, in turns. Usage:

    python benchmarks/prefix.py [--json FILE]
"""

import argparse
import os
import random
import subprocess
import sys
import time

import common


def program(seed, ops, size, pause):
    """Records `ops` operations on `size` x `size` tensors, chosen by `seed`, waiting for something else for `pause`
    seconds after each, and looks at the result; gives the seconds it took."""
    import gt

    rng = random.Random(seed)
    gt.manual_seed(seed)
    values = [gt.randn(size, size) for _ in range(4)]
    gt.synchronize()
    choices = [
        lambda a, b: a + b,
        lambda a, b: a * 0.5 - b,
        lambda a, b: gt.maximum(a, b),
        lambda a, b: a.tanh(),
        lambda a, b: a - a.mean(0, keepdim=True),
        lambda a, b: (a @ b) * (1 / size),
    ]
    picks = [(rng.choice(choices), rng.randrange(4), rng.randrange(4), rng.randrange(4)) for _ in range(ops)]
    start = time.perf_counter()
    for op, a, b, out in picks:
        values[out] = op(values[a], values[b])
        if pause:
            time.sleep(pause)
    sum(v.sum() for v in values).item()
    return time.perf_counter() - start


CASES = {
    "20,000 ops on 128x128, one after the other": (20_000, 128, 0.0, 7),
    "600 ops on 512x512, one after the other": (600, 512, 0.0, 7),
    "600 ops on 512x512, waiting 0.2 ms after each": (600, 512, 200e-6, 7),
}


def one(case, seed):
    """Seconds of one case in this process."""
    ops, size, pause, _ = CASES[case]
    program(0, 50, size, 0.0)
    print(program(seed, ops, size, pause))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default="prefix.json", help="where to write the results")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one(args.one[0], int(args.one[1]))
    report = common.Report("prefix")
    for case, (*_, rounds) in CASES.items():
        took = {"": [], "0": []}
        for seed in range(1, rounds + 1):
            for setting in took:
                command = [sys.executable, __file__, "--one", case, str(seed)]
                env = {**os.environ, "GT_PREFIX": setting}
                took[setting].append(float(subprocess.run(command, check=True, capture_output=True, env=env).stdout))
        ours, theirs = min(took[""]), min(took["0"])
        report.add(
            case, ours / theirs, "x", 1.02, note=f"{ours * 1e3:.0f} ms with prefixes, {theirs * 1e3:.0f} without"
        )
    report.write(args.json)


if __name__ == "__main__":
    main()
