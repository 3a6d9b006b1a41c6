"""A server and its workers as processes, for tests and for what runs where a GPU is."""

import os
import re
import signal
import subprocess
import sys
import time


class System:
    """A server and its workers, as processes."""

    def __init__(self, workers=0, unix=None, server_args=()):
        self.processes = []
        args = ["-p", "0", *server_args] + (["--unix", unix] if unix else [])
        server = self.start("gt.server", args, stdout=subprocess.PIPE)
        self.port = self._port(server)
        self.address = f"unix:{unix}" if unix else f"localhost:{self.port}"
        for i in range(workers):
            self.add_worker(f"w{i}")
        # Clients wait for a first worker by themselves; who comes before the others are there is placed without them.
        if workers > 1:
            self.wait(workers)

    def add_worker(self, name, *args, env=None):
        place = ["--host", "localhost", "-p", str(self.port)]
        return self.start("gt.worker", [*place, "--name", name, *args], env)

    def start(self, module, args, env=None, **options):
        """Starts a module as a process that is stopped with the others."""
        environment = {k: v for k, v in os.environ.items() if k not in ("GT_SERVER",)}
        command = [sys.executable, "-m", module, *args]
        process = subprocess.Popen(command, env={**environment, **(env or {})}, text=True, **options)
        self.processes.append(process)
        return process

    def _port(self, server):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            line = server.stdout.readline()
            found = re.search(r":(\d+)\b", line)
            if found:
                return int(found.group(1))
            if not line and server.poll() is not None:
                break
        raise RuntimeError("the server did not say where it listens")

    def wait(self, workers, timeout=60):
        """Returns when so many workers are connected."""
        place = ["--host", "localhost", "-p", str(self.port)]
        command = [sys.executable, "-m", "gt", "wait", *place, "--workers", str(workers)]
        subprocess.run(command, check=True, timeout=timeout, stdout=subprocess.DEVNULL)

    def stop(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
