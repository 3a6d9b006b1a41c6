"""The examples of parallel training: every worker works, and the losses are those of a single worker."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import gt

pytestmark = pytest.mark.local_only

PARALLEL = pathlib.Path(__file__).resolve().parents[1] / "examples/parallel"


def run(name, *args):
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gt.__file__))}
    env.pop("GT_SERVER", None)
    line = [sys.executable, str(PARALLEL / f"{name}.py"), *args]
    return subprocess.run(line, capture_output=True, text=True, timeout=110, env=env)


@pytest.mark.parametrize("name", ["data_parallel", "fsdp", "tensor_parallel", "pipeline", "hybrid"])
def test_losses_are_those_of_one_worker(name):
    done = run(name, "--steps", "50")
    assert done.returncode == 0, done.stdout + done.stderr
    first, last, gap = map(float, re.search(r"loss (\S+) -> (\S+), at most (\S+) from", done.stdout).groups())
    assert last < first and gap <= 1e-4


@pytest.mark.parametrize(
    "name, workers", [("data_parallel", 3), ("tensor_parallel", 3), ("pipeline", 3), ("hybrid", 6)]
)
def test_batches_heads_and_workers_that_do_not_divide(name, workers):
    done = run(name, "--steps", "6", "--workers", str(workers), "--batch-size", "7", "--seq-len", "13")
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"at most (\S+) from", done.stdout).group(1)) <= 1e-4


def test_fsdp_divides_the_memory():
    """With more of the model than of the batch, four workers need little more than a quarter each."""
    done = run("fsdp", "--steps", "4", "--model-size", "small", "--batch-size", "4", "--seq-len", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    parts = [float(part) for part in re.findall(r"MB, (\S+) of the", done.stdout)]
    assert len(parts) == 4 and max(parts) < 0.5
