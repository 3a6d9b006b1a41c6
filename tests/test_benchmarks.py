"""The benchmarks of sharding run with their options, and write what they print."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import gt

pytestmark = pytest.mark.local_only

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"


def run(*line, **env):
    home = os.path.dirname(os.path.dirname(gt.__file__))
    env = {**os.environ, "PYTHONPATH": home, "PYTHON": sys.executable, **env}
    return subprocess.run(line, capture_output=True, text=True, timeout=110, env=env)


def check(done, path, counts):
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(path.read_text())
    assert data["counts"] == counts and not data["download"]
    assert [row["kind"] for row in data["rows"]] == ["square", "batch", "mlp"]
    for row in data["rows"]:
        assert all(row["seconds"][str(n)] > 0 for n in counts)
    for word in ("PERFORMANCE COMPARISON", "Square Matrix Multiplications", "no download is included", "Speedup:"):
        assert word in done.stdout
    return data


def test_quick_benchmark(tmp_path):
    path = tmp_path / "quick.json"
    script = str(BENCHMARKS / "quick_benchmark.py")
    # More workers than cores take turns.
    counts = ["1", "2", str(len(os.sched_getaffinity(0)) + 1)]
    options = ["--quick", "--port", "0", "--workers", "cpu", "--threads", "1", "--scale", "0.03", "--json", str(path)]
    data = check(run(sys.executable, script, "--gpus", *counts, *options), path, [int(n) for n in counts])
    for row in data["rows"]:
        assert all(row["of_machine"][n] > 0 for n in counts[1:])


def test_auto_shard_benchmark(tmp_path, start_system):
    system = start_system(workers=2)
    path = tmp_path / "auto.json"
    script = str(BENCHMARKS / "auto_shard_benchmark.py")
    options = ["--quick", "--workers", "cpu", "--scale", "0.03", "--no-baseline", "--json", str(path)]
    check(run(sys.executable, script, "--gpus", "1", "2", "--port", str(system.port), *options), path, [1, 2])
    done = run(sys.executable, script, "--gpus", "3", "--port", str(system.port), "--workers", "cpu")
    assert done.returncode and "2 workers are connected" in done.stderr
    done = run(sys.executable, script, "--gpus", "1", "--port", "1", "--workers", "cpu")
    assert done.returncode and "Start a server first" in done.stderr


def test_the_launcher_passes_options_on():
    done = run("bash", str(BENCHMARKS / "launch_8gpu_benchmark.sh"), "--help")
    assert done.returncode == 0 and "--threads" in done.stdout
