"""The suite runs unchanged in-process, over a unix socket with one worker, and over TCP with four.

Choose with GT_TEST_TRANSPORT=inproc|unix|tcp4. Tests marked `local_only` start systems of their own.
"""

import os
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from system import System

import gt

# A shell that starts the suite in the background has it ignore interrupts, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

TRANSPORT = os.environ.get("GT_TEST_TRANSPORT", "inproc")
# Seconds a test may take.
LIMIT = 120


def pytest_configure(config):
    config.addinivalue_line("markers", "local_only: starts systems of its own; not for other transports")


@pytest.fixture(scope="session", autouse=True)
def system():
    """The system that the suite runs on."""
    if TRANSPORT == "inproc":
        yield None
        return
    if TRANSPORT not in ("unix", "tcp4"):
        raise RuntimeError(f"GT_TEST_TRANSPORT: expected inproc, unix or tcp4, got {TRANSPORT!r}")
    folder = tempfile.mkdtemp(prefix="gt-test-")
    unix = os.path.join(folder, "gt.sock") if TRANSPORT == "unix" else None
    system = System(workers=1 if unix else 4, unix=unix)
    gt.connect(system.address)
    yield system
    gt.disconnect()
    system.stop()


@pytest.fixture(autouse=True)
def limit():
    """No test waits for ever: waits obey signals, so an alarm ends them."""

    def late(signum, frame):
        raise TimeoutError(f"the test took longer than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def seed():
    np.random.seed(0)
    gt.manual_seed(0)


@pytest.fixture
def run_python(tmp_path):
    """Runs a script in a process of its own, which must end within a limit."""

    def run(script, timeout=60, check=True, env=None):
        path = tmp_path / "script.py"
        path.write_text(script)
        environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gt.__file__)), **(env or {})}
        environment.pop("GT_SERVER", None)
        done = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=timeout, env=environment
        )
        if check:
            assert done.returncode == 0, done.stderr + done.stdout
        return done

    return run


@pytest.fixture
def start_system():
    """Starts a server and workers; they are stopped at the end of the test."""
    systems = []

    def start(*args, **kwargs):
        systems.append(System(*args, **kwargs))
        return systems[-1]

    yield start
    for system in systems:
        system.stop()
