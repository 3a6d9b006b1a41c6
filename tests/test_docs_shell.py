"""The shell blocks and the YAML of the documentation, run.

Commands are taken as they stand but for what no test can have: ports are free ones, HOST and PORT are those of a system
that runs already with a client at work, sizes are small, workers are CPU workers, `ssh` stays on this host, and what
`make` would do is only listed, since the tests are part of it. Servers, workers and `gt top` run until the block ends.
"""

import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from test_docs import PAGES, ROOT, blocks, environment

import gt

pytestmark = pytest.mark.local_only

PROGRAM = """
import gt

x = gt.randn(64, 32)
w = gt.randn(32, 8, requires_grad=True)
for _ in range(3):
    loss = (x @ w).square().mean()
    loss.backward()
    w = (w - 0.1 * w.grad).detach().requires_grad_(True)
print("trained", loss.item())
"""

# A client that is at work until it is stopped.
AT_WORK = """
import time
import gt

x = gt.randn(64, 64)
while True:
    (x @ x).sum().item()
    time.sleep(0.01)
"""

SMALL = "--quick --workers cpu --threads 1 --scale 0.02 --no-baseline"
FOR_GOOD = re.compile(r"(?:gt|python -m gt\.) ?(?:server|worker|top)\b")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Shell:
    """Runs the blocks of a page, in a folder that looks like the repository."""

    def __init__(self, folder, system):
        self.folder, self.system = folder, system
        self.ports = {"12345": str(free_port()), "8080": str(free_port()), "9000": str(system.port)}
        for name in ("demo.py", "examples", "benchmarks", "python"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "train.py").write_text(PROGRAM)
        ssh = folder / "ssh"
        ssh.write_text('#!/bin/sh\nexec sh -c "$2"\n')
        ssh.chmod(0o755)
        self.env = {
            **environment(),
            "GT_SERVER": system.address,
            "PYTHONPATH": str(pathlib.Path(gt.__file__).parents[1]),
        }
        self.running = []

    def adapt(self, line):
        """The command as it is run here."""
        line = line.split(" #")[0].strip()
        line = re.sub(r"\b(12345|8080|9000)\b", lambda m: self.ports[m.group(1)], line)
        line = line.replace("HOST", "localhost").replace("PORT", str(self.system.port))
        line = line.replace("/tmp/qwen3", str(self.folder / "qwen3")).replace("--steps 100", "--steps 3")
        line = re.sub(r"^make ", f"make --dry-run -C {ROOT} ", line)
        # The package is there already; what it needs is not fetched, for there may be no network.
        line = re.sub(r"^pip install \.$", f"pip install -q --no-deps --no-build-isolation --target site {ROOT}", line)
        line = re.sub(r"(chargpt/train.py)$", r"\1 --steps 3 --characters 20", line)
        line = re.sub(r"(quick_benchmark.py) .*|(launch_8gpu_benchmark.sh).*", rf"\1\2 {SMALL} --gpus 1 2", line)
        line = re.sub(r"(auto_shard_benchmark.py) .*", rf"\1 {SMALL} --gpus 1 2 --port {self.ports['9000']}", line)
        line = re.sub(r"(planner_choice.py)$", r"\1 --steps 4 --repeat 1 --examples fsdp", line)
        here = "-p 0 --ssh ./ssh --address 127.0.0.1 --worker-args '--threads 1'"
        return line.replace("gt launch ", f"gt launch {here} ")

    def start(self, line):
        """A program that does not end by itself gets a terminal."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=self.folder, env=self.env, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self.running.append((line, process, ours))
        self.heard(ours, 1.0)

    def heard(self, terminal, seconds):
        """Reads what it says for so long."""
        text, until = b"", time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([terminal], [], [], left)[0]:
                try:
                    text += os.read(terminal, 65536)
                except OSError:
                    break
        return text.decode(errors="replace")

    def block(self, body):
        script = []
        for line in map(self.adapt, body.splitlines()):
            if FOR_GOOD.match(line) and not line.endswith("&"):
                self.start(line)
            else:
                script.append(line)
        ended = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
        # What a block puts into the background holds no pipe of ours.
        script = [re.sub(r"&( done)?$", r"> /dev/null 2>\&1 &\1", line) for line in script]
        command = ["bash", "-e", "-c", "\n".join([ended, *script])]
        if any("wait" in line for line in script):
            # The block has a server of its own.
            self.env = {**self.env, "GT_SERVER": f"localhost:{self.ports['12345']}"}
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=890)
        assert done.returncode == 0, "\n".join(script) + "\n" + done.stdout + done.stderr
        for line, process, _ in self.running:
            assert process.poll() is None, f"{line} ended with {process.poll()}"

    def stop(self):
        for _, process, _ in self.running:
            process.send_signal(signal.SIGINT)
        for _, process, terminal in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(terminal)


CASES = [(page, line, body) for page in PAGES for kind, body, line in blocks(page) if kind == "bash"]


@pytest.mark.parametrize("page,line,body", CASES, ids=[f"{page.stem}-{line}" for page, line, _ in CASES])
def test_bash_block(page, line, body, tmp_path, start_system):
    if "pip install ." in body and not (shutil.which("cargo") and shutil.which("maturin", path=environment()["PATH"])):
        pytest.skip("building takes cargo and maturin")
    if "pip install ." in body:
        # Nothing may be built yet.
        signal.alarm(900)
    yaml = next((text for kind, text, _ in blocks(page) if kind == "yaml"), "")
    (tmp_path / "sharding.yaml").write_text(yaml)
    shell = Shell(tmp_path, start_system(2))
    client = subprocess.Popen([sys.executable, "-c", AT_WORK], env=shell.env, cwd=tmp_path)
    try:
        shell.block(body)
    finally:
        client.kill()
        client.wait()
        shell.stop()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_yaml_blocks(page, tmp_path):
    """Signals are loaded, a file per block; what a block speaks of may stand in an earlier one."""
    known = {}
    for kind, body, line in blocks(page):
        if kind == "yaml":
            known.update({part.split(":")[0]: part for part in re.split(r"^(?=\w)", body, flags=re.MULTILINE)})
            path = tmp_path / f"line{line}.yaml"
            path.write_text("".join(known.values()))
            gt.load_config(str(path))
