"""How good the planner's own choice is: the examples of parallel training with every YAML file and with none.

    python benchmarks/planner_choice.py [--examples fsdp] [--workers 8] [--backend cpu] [--model-size tiny]
        [--steps 30] [--repeat 3]

Each row is one example (its workers, its way to take a step), each column a file from examples/parallel, then what the
planner chooses with GT_AUTO_SHARD=1 alone. Times are the least of some runs, in milliseconds a step; the last column is
the planner's over the best file's. Every run is a process of its own, and losses are compared with those of one worker.
With --thoughts a second line says what the planner thinks each file's step takes, where it is one program.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

PARALLEL = pathlib.Path(__file__).resolve().parents[1] / "examples/parallel"
NAMES = ["data_parallel", "fsdp", "tensor_parallel", "pipeline", "hybrid"]
# How far a loss may lie from that of a single worker.
CLOSE = 1e-4
# What the dispatcher's log says of a division: the workers, the milliseconds, those on one worker.
THOUGHT = re.compile(r"on (\d+) workers \((.*?)\): ([\d.]+) ms, ([\d.]+) of them in (\d+) coll.*; ([\d.]+) ms on one")
# And of a run: the instructions, the milliseconds, and what they went to.
RAN = re.compile(r"\| RAN \|.* ops=(\d+) .*took=([\d.]+)ms .*families=(\S+)")


def start(name, args, steps, *more, **variables):
    line = [sys.executable, str(PARALLEL / f"{name}.py"), "--json", "--model-size", args.model_size]
    line += ["--steps", str(steps), "--batch-size", str(args.batch_size), "--seq-len", str(args.seq_len), *more]
    line += ["--workers", str(args.workers)] if args.workers else []
    variables |= {"GT_BACKEND": args.backend} if args.backend else {}
    env = os.environ | variables
    done = subprocess.run(line, capture_output=True, text=True, timeout=args.timeout, env=env)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}\n{done.stdout}{done.stderr}")
    return done


def run(name, args, *more):
    return json.loads(start(name, args, args.steps, *more).stdout.splitlines()[-1])


def thought(name, args, *more):
    """What the planner thought of the longest program of a step, and what a worker then spent on it."""
    log = start(name, args, 12, *more, GT_DEBUG_DISPATCHER="1").stderr.splitlines()
    plans = [line for line in log if " PLAN" in line]
    found = [m for m in map(THOUGHT.search, plans[-2:]) if m]
    ran = [m for m in map(RAN.search, log[len(log) // 2 :]) if m]
    ran = min(ran, key=lambda m: (-int(m[1]), float(m[2])), default=None)
    spent = dict(ran=float(ran[2]), families=ran[3]) if ran else {}
    if not found:
        how = "on one worker" if any("on one worker" in line for line in plans) else "by stages"
        return dict(ms=None, how=how, **spent)
    most = max(found, key=lambda m: float(m[3]))
    told = dict(ms=float(most[3]), moving=float(most[4]), collectives=int(most[5]), alone=float(most[6]))
    return told | dict(how=most[2]) | spent


def choices():
    files = {file: ["--config", str(PARALLEL / f"{file}.yaml")] for file in NAMES}
    return files | {"planner": ["--auto"]}


def measure(name, args):
    """Milliseconds a step with every file, and with none."""
    single = run(name, args, "--alone")
    rows = {"one worker": single["seconds"]}
    for _ in range(args.repeat):
        # In turns, so that a slow minute of the machine is no file's alone.
        for choice, more in choices().items():
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
    parser.add_argument("--backend", help="of all workers; `cpu` on a machine with fewer GPUs than workers")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one run")
    parser.add_argument("--thoughts", action="store_true", help="say what the planner thinks of each file")
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
        if args.thoughts:
            row["thoughts"] = {choice: thought(name, args, *more) for choice, more in choices().items()}
            row["thoughts"]["one worker"] = dict(ms=row["thoughts"]["planner"].get("alone"))
            said = [row["thoughts"][c]["ms"] for c in columns]
            print("  thought".ljust(16) + "".join(f"{ms:17.2f}" if ms else "-".rjust(17) for ms in said), flush=True)
            for choice, said in row["thoughts"].items():
                print(f"{choice:>18}: {said}", flush=True)
    if args.output:
        pathlib.Path(args.output).write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
