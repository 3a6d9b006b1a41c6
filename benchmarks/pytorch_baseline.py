"""What PyTorch alone takes for the workloads that GT is compared with, eager and compiled.

    python benchmarks/pytorch_baseline.py [--steps N] [--json pytorch_baseline.json] [--plot pytorch_baseline.svg]

One table: milliseconds per training step, and the ratio of GT's time to PyTorch's on the same machine in the same run.
"""

import argparse
import json
import statistics
import sys
import time

from common import torch
from plot import bars

import gt

MODELS = {"perceptron 64": (64, 2), "perceptron 512": (512, 3), "deep perceptron 128": (128, 12)}


def model(lib, width, layers):
    nn = lib.nn
    parts = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)]
    return nn.Sequential(*parts, nn.Linear(width, width))


def training(lib, width, layers, compiled=False):
    net = model(lib, width, layers)
    optimizer = lib.optim.AdamW(net.parameters(), lr=1e-3)
    forward = torch.compile(net) if compiled else net

    def step():
        x = lib.randn(128, width)
        loss = ((forward(x) - x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def measure(sides, steps):
    """Median seconds per step of each side, measured in turns."""
    times = {name: [] for name in sides}
    for step in sides.values():
        for _ in range(5):
            step()
    for _ in range(steps):
        for name, step in sides.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--compiled", action="store_true", help="torch.compile too, which needs a C compiler")
    parser.add_argument("--json", default="pytorch_baseline.json")
    parser.add_argument("--plot", default="pytorch_baseline.svg")
    args = parser.parse_args()
    if torch is None:
        sys.exit("pytorch_baseline: PyTorch is not installed: pip install torch")
    rows = []
    print(f"{'':24} {'PyTorch':>12} {'compiled':>12} {'GT':>12} {'GT / PyTorch':>14}")
    for name, (width, layers) in MODELS.items():
        sides = {"torch": training(torch, width, layers), "gt": training(gt, width, layers)}
        if args.compiled:
            sides["compiled"] = training(torch, width, layers, compiled=True)
        times = measure(sides, args.steps)
        ratio = times["gt"] / times["torch"]
        rows.append({"what": name, "ratio": ratio, **times})
        compiled = f"{times['compiled'] * 1e3:9.2f} ms" if "compiled" in times else "-"
        print(
            f"{name:24} {times['torch'] * 1e3:9.2f} ms {compiled:>12} {times['gt'] * 1e3:9.2f} ms {ratio:14.2f}",
            flush=True,
        )
    with open(args.json, "w") as file:
        json.dump(
            {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "torch": torch.__version__, "rows": rows}, file, indent=1
        )
    bars(args.plot, "GT's time / PyTorch's time per training step", [(r["what"], r["ratio"]) for r in rows], line=1.0)
    print(f"written to {args.json} and {args.plot}")


if __name__ == "__main__":
    main()
