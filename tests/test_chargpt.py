"""The char-GPT example: it learns, it draws, and it is the same on PyTorch."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
from helpers import needs_torch

import gt

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "examples" / "chargpt" / "train.py"


def run(*args):
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gt.__file__)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), "--batch-size", "4", "--every", "10", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment)
    assert done.returncode == 0, done.stderr
    loss = float(done.stdout.split("mean loss of the last 20: ")[1].split()[0])
    return loss, done.stdout


@pytest.mark.parametrize(
    "option,value",
    [
        ("--steps", "-1"),
        ("--minutes", "-1"),
        ("--minutes", "0"),
        ("--minutes", "nan"),
        ("--temperature", "0"),
        ("--temperature", "-1"),
        ("--lr", "inf"),
        ("--dropout", "2"),
        ("--seed", "-1"),
        ("--characters", "-1"),
        ("--text", "/no/such/file"),
    ],
)
def test_wrong_arguments_are_told_of(option, value, capsys):
    spec = importlib.util.spec_from_file_location("chargpt_train", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(SystemExit, match="2"):
        module.main([option, value])
    assert option in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.local_only
def test_a_moment_is_one_step():
    _, text = run("--minutes", "1e-9", "--characters", "1")
    assert "1 steps, mean loss" in text


@pytest.mark.local_only
def test_it_learns_and_draws():
    loss, text = run("--steps", "60", "--characters", "40", "--prompt", "Alice ", "--dropout", "0.1")
    # A uniform guess is 4.25 nats, the frequencies of characters are 3.0.
    assert loss < 2.9
    assert len(text.split("Alice ")[-1].rstrip("\n")) >= 30


@needs_torch
@pytest.mark.local_only
def test_the_same_file_learns_on_pytorch():
    loss, _ = run("--steps", "60", "--characters", "1", "--pytorch")
    assert loss < 2.9
