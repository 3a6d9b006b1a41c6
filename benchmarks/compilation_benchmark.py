"""What compiling buys: training steps op by op, in batches of ops, compiled as they come, and at full effort at once.

    python benchmarks/compilation_benchmark.py [--steps N] [--json FILE] [--plot FILE]

One table: the first step, a later one, the ratio to op by op, and plans made; each setting is a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from plot import bars

SETTINGS = {
    "op by op (GT_AUTO_COMPILE=0)": {"GT_AUTO_COMPILE": "0"},
    "batches of 10 (GT_WORKER_BATCH_SIZE=10)": {"GT_AUTO_COMPILE": "0", "GT_WORKER_BATCH_SIZE": "10"},
    "compiled as it comes (default)": {},
    "compiled at once (GT_COMPILE=1)": {"GT_COMPILE": "1"},
}


def child(steps):
    """Trains in this process; prints times and counters as JSON."""
    import gt
    from gt import nn

    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 128))
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        x = gt.randn(64, 128)
        loss = ((model(x) - x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - start)
    cache = gt.debug.get_worker_stats()["compilation"]
    later = statistics.median(times[len(times) // 2 :])
    print(json.dumps({"first": times[0], "later": later, "made": cache["made"], "plan_seconds": cache["seconds"]}))


def measure(setting, steps):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GT_")}
    command = [sys.executable, __file__, "--child", "--steps", str(steps)]
    done = subprocess.run(command, env={**env, **setting}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", default="compilation_benchmark.json")
    parser.add_argument("--plot", default="compilation_benchmark.svg")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.steps)
    rows, base = [], None
    print(f"{'':42} {'first step':>12} {'later step':>12} {'ratio':>7} {'plans':>7} {'making them':>12}")
    for name, setting in SETTINGS.items():
        found = measure(setting, args.steps)
        base = base or found["later"]
        row = {"what": name, "ratio": found["later"] / base, **found}
        rows.append(row)
        first, later, making = (f"{row[k] * 1e3:9.2f} ms" for k in ("first", "later", "plan_seconds"))
        print(f"{name:42} {first:>12} {later:>12} {row['ratio']:7.2f} {row['made']:7} {making:>12}", flush=True)
    with open(args.json, "w") as file:
        json.dump({"date": time.strftime("%Y-%m-%d %H:%M:%S"), "rows": rows}, file, indent=1)
    bars(args.plot, "time of a later step / op by op", [(r["what"], r["ratio"]) for r in rows], line=1.0)
    print(f"written to {args.json} and {args.plot}")


if __name__ == "__main__":
    main()
