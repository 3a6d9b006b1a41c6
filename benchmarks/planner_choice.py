"""How good the planner's own choice is: the examples of parallel training with every YAML file and with none.

    python benchmarks/planner_choice.py [--examples fsdp] [--workers 8] [--model-size tiny] [--steps 30] [--repeat 3]

Each row is one example (its workers, its way to take a step), each column a file from examples/parallel, then what the
planner chooses with GT_AUTO_SHARD=1 alone. Times are the least of some runs, in milliseconds a step; the last column is
the planner's over the best file's. Every run is a process of its own, and losses are compared with those of one worker.
"""

import argparse
import json
import pathlib
import subprocess
import sys

PARALLEL = pathlib.Path(__file__).resolve().parents[1] / "examples/parallel"
NAMES = ["data_parallel", "fsdp", "tensor_parallel", "pipeline", "hybrid"]
# How far a loss may lie from that of a single worker.
CLOSE = 1e-4


def run(name, args, *more):
    line = [sys.executable, str(PARALLEL / f"{name}.py"), "--json", "--model-size", args.model_size]
    line += ["--steps", str(args.steps), "--batch-size", str(args.batch_size), "--seq-len", str(args.seq_len), *more]
    line += ["--workers", str(args.workers)] if args.workers else []
    done = subprocess.run(line, capture_output=True, text=True, timeout=args.timeout)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(name, args):
    """Milliseconds a step with every file, and with none."""
    single = run(name, args, "--alone")
    rows = {"one worker": single["seconds"]}
    choices = {file: ["--config", str(PARALLEL / f"{file}.yaml")] for file in NAMES}
    choices["planner"] = ["--auto"]
    for _ in range(args.repeat):
        # In turns, so that a slow minute of the machine is no file's alone.
        for choice, more in choices.items():
            got = run(name, args, *more)
            gap = max(abs(a - b) for a, b in zip(got["losses"], single["losses"], strict=True))
            if not gap <= CLOSE:
                raise SystemExit(f"{name} with {choice}: losses differ by {gap:.1e} from those of one worker")
            rows[choice] = min(rows.get(choice, float("inf")), got["seconds"])
    return {choice: seconds * 1e3 for choice, seconds in rows.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--model-size", default="tiny", choices=["tiny", "small"])
    parser.add_argument("--workers", type=int, help="for every example, instead of its own number")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one run")
    parser.add_argument("--output", help="write the table as JSON")
    args = parser.parse_args()
    columns = ["one worker", *NAMES, "planner"]
    print("example".ljust(16) + "".join(c.rjust(17) for c in columns) + "planner/best".rjust(14))
    results = {}
    for name in args.examples:
        row = results[name] = measure(name, args)
        row["ratio"] = row["planner"] / min(row[file] for file in NAMES)
        cells = "".join(f"{row[c]:17.2f}" for c in columns)
        print(name.ljust(16) + cells + f"{row['ratio']:14.2f}", flush=True)
    if args.output:
        pathlib.Path(args.output).write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
