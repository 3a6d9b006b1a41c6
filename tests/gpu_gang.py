"""Two workers on one GPU as one: Qwen3-tiny trained with GT_AUTO_SHARD=1 has the losses of one worker.

Run it where a GPU is:

    python tests/gpu_gang.py [--backend cpu] [--steps 30] [--ways nccl host plain check killed]

Collectives go by NCCL, then by way of the host, and at last a worker is killed while others wait for it: an error in
seconds. NCCL takes two ranks on one GPU only if it believes them to be on two hosts, hence NCCL_HOSTID. `plain` is NCCL
without graphs, `check` with each collective compared with what the host works out, and each kernel that was made for a
plan with those that ship.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

from system import System

TRAIN = """
import sys, time
sys.path[:0] = [EXAMPLES, EXAMPLES + "/qwen3"]
import numpy as np, gt
gt.connect(sys.argv[1])
import framework
framework.choose(False)
import train, weights
gt.manual_seed(0)
model = weights.fresh("tiny", None)
args = type("Args", (), dict(lr=1e-3, batch_size=4, epochs=100, seed=0, steps=int(sys.argv[2]), every=10**9))
samples = train.synthetic(model.config.vocab_size, 64, 64, 0)
start = time.perf_counter()
try:
    losses = train.train(model, samples, args, gt, say=print if sys.argv[2] == "1000000" else lambda line: None)
except ConnectionError as error:
    print("lost", time.time(), str(error)[:200])
    print("alive", (gt.ones(3) + 1).tolist())
    sys.exit(0)
print("losses", *losses)
used = [w["programs"] for w in gt.debug.get_worker_stats()["workers"]]
print("used", sum(n >= len(losses) for n in used), "of", len(used), f"{time.perf_counter() - start:.1f} s")
"""


class Gang(System):
    """A system whose workers share a GPU, each with its own environment."""

    def __init__(self, backend, *environments):
        super().__init__()
        kind = ["--backend", backend] + (["--device", "0"] if backend == "cuda" else ["--threads", "1"])
        self.workers = [self.add_worker(f"w{i}", *kind, env=env) for i, env in enumerate(environments)]
        self.wait(len(environments))

    def client(self, steps, env):
        examples = pathlib.Path(__file__).resolve().parents[1] / "examples"
        script = TRAIN.replace("EXAMPLES", repr(str(examples)))
        command = [sys.executable, "-c", script, self.address, str(steps)]
        return subprocess.Popen(command, env={**os.environ, **env}, text=True, stdout=subprocess.PIPE)


def losses_of(backend, steps, environments, env):
    system = Gang(backend, *environments)
    try:
        out, _ = system.client(steps, env).communicate(timeout=170)
        ended = [worker.poll() for worker in system.workers]
    finally:
        system.stop()
    assert "losses" in out, f"no losses; workers ended with {ended}: {out}"
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    print("      used", *lines["used"], flush=True)
    return [float(x) for x in lines["losses"]], int(lines["used"][0])


def killed(backend, environments, env):
    """Seconds until a client hears that a worker was killed."""
    system = Gang(backend, *environments)
    try:
        client = system.client(1_000_000, env)
        assert "loss" in client.stdout.readline()
        time.sleep(2)
        system.workers[1].kill()
        start = time.time()
        out, _ = client.communicate(timeout=60)
    finally:
        system.stop()
    print("      ", out.strip())
    lost = next(line for line in out.splitlines() if line.startswith("lost"))
    assert "alive [2.0, 2.0, 2.0]" in out or "alive [2, 2, 2]" in out, "the other worker is of no use any more"
    return float(lost.split()[1]) - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda", help="what the workers run on")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ways", nargs="+", default=["nccl", "host", "killed"], help="what is tried")
    args = parser.parse_args()
    split = {"GT_AUTO_SHARD": "1", "GT_SHARD_MIN": "0"}
    hosts = [{"NCCL_HOSTID": "a"}, {"NCCL_HOSTID": "b"}]
    ways = {"nccl": {}, "host": {"GT_NCCL": "0"}, "plain": {"GT_CUDA_GRAPHS": "0"}, "check": {"GT_NCCL": "check"}}
    ways = {name: way for name, way in ways.items() if name in args.ways}
    alone, _ = losses_of(args.backend, args.steps, [{}], {})
    failed = 0
    for name, way in ways.items():
        divided, used = losses_of(args.backend, args.steps, [{**host, **way} for host in hosts], split)
        apart = [abs(a - b) for a, b in zip(alone, divided, strict=True)]
        right = max(apart) < 1e-4 and used == 2
        failed += not right
        word = f"{'ok' if right else 'BAD'} {name}: loss {alone[0]:.4f} -> {divided[-1]:.4f}"
        first = next((f", first in step {i}" for i, d in enumerate(apart) if d >= 1e-4), "")
        print(f"{word}, {max(apart):.1e} from one worker{first}", flush=True)
        if not right:
            print("      apart", *(f"{d:.0e}" for d in apart))
    if "killed" in args.ways:
        seconds = killed(args.backend, hosts, split)
        failed += not seconds < 8
        print(f"{'ok' if seconds < 8 else 'BAD'} killed: an error after {seconds:.1f} s")
    sys.exit(failed)


if __name__ == "__main__":
    main()
