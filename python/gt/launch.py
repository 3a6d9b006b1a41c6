"""Starting workers on machines that something else manages.

cluster = gt.launch.ray(num_workers=8, num_gpus=1)
with cluster:
    cluster.connect()
    ...

`gt launch --hosts a,b,c` does the same over ssh; launchers/ has a batch script for Slurm and manifests for Kubernetes.
"""

import atexit
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time

__all__ = ["Cluster", "ray", "wait"]


def wait(workers, address=None, token_file=None, timeout=120.0):
    """Waits until so many workers are connected to a server (by default that of GT_SERVER), else raises."""
    command = [sys.executable, "-m", "gt", "wait", "--workers", str(workers), "--timeout", str(timeout)]
    if address is not None:
        host, _, port = address.rpartition(":")
        command += ["--host", host, "-p", port]
    if token_file is not None:
        command += ["--token-file", str(token_file)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConnectionError(done.stderr.strip().removeprefix("gt: "))


class Server:
    """A server on this machine, in a process of its own, with a token of its own."""

    def __init__(self, host, port=0):
        self.folder = tempfile.mkdtemp(prefix="gt-launch-")
        self.token = secrets.token_hex(16)
        self.token_file = os.path.join(self.folder, "token")
        with open(os.open(self.token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(self.token)
        command = ["-m", "gt.server", "--host", "0.0.0.0", "-p", str(port), "--token-file", self.token_file]
        self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)\s*$", line)
        if not found:
            self.stop()
            raise RuntimeError(f"launch: the server did not start, it said {line.strip()!r}")
        # What it says later must not fill the pipe.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.address = f"{host}:{found.group(1)}"

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster:
    """A server and the workers that were started for it. As a context, it stops them at the end."""

    def __init__(self, server, stop_workers):
        self._server = server
        self._stop_workers = stop_workers
        self._stopped = False
        self.address = server.address
        self.token = server.token
        self.token_file = server.token_file
        atexit.register(self.stop)

    def connect(self):
        """Makes the cluster the default of this process; gives the session."""
        import gt

        return gt.connect(self.address, token=self.token)

    def stop(self):
        """Ends the workers and the server."""
        if not self._stopped:
            self._stopped = True
            self._stop_workers()
            self._server.stop()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()


def ray(num_workers, num_gpus=0, num_cpus=1, worker_args=(), timeout=120.0, **options):
    """Starts a server here and `num_workers` workers as Ray actors, wherever Ray has room for them, and waits for them.

    Each worker asks Ray for `num_gpus` GPUs and `num_cpus` CPUs; other `options` are those of `ray.remote`
    (`resources`, `scheduling_strategy`, ...). Ray is initialised if nobody has done so. Returns a `Cluster`.
    """
    try:
        import ray as engine
    except ImportError:
        raise ImportError("gt.launch.ray: Ray is not installed: pip install ray") from None
    if num_workers < 1:
        raise ValueError(f"gt.launch.ray: num_workers: expected at least 1, got {num_workers}")
    if not engine.is_initialized():
        engine.init(log_to_driver=False)
    server = Server(engine.util.get_node_ip_address())
    options = {"num_gpus": num_gpus, "num_cpus": num_cpus, **options}
    actor = engine.remote(**options)(_RayWorker)
    args = [*map(str, worker_args)]
    if num_cpus >= 1 and "--threads" not in args and not num_gpus:
        args += ["--threads", str(int(num_cpus))]
    actors = [actor.remote(server.address, server.token, f"ray-{i}", args) for i in range(num_workers)]

    def stop():
        for one in actors:
            try:
                engine.get(one.stop.remote(), timeout=5)
            except Exception:  # An actor that is gone has nothing to stop.
                pass
            engine.kill(one)

    cluster = Cluster(server, stop)
    try:
        _wait_for_ray(engine, actors, cluster, num_workers, timeout)
    except BaseException:
        cluster.stop()
        raise
    return cluster


def _wait_for_ray(engine, actors, cluster, num_workers, timeout):
    """Waits until Ray has placed the actors, then until their workers are connected."""
    deadline = time.monotonic() + timeout
    started = [one.alive.remote() for one in actors]
    ready, waiting = engine.wait(started, num_returns=len(started), timeout=timeout)
    if waiting:
        raise TimeoutError(
            f"gt.launch.ray: Ray placed {len(ready)} of {num_workers} workers within {timeout:g} s: it has "
            f"{engine.available_resources()} free; ask for less, or add nodes"
        )
    failed = [said for said in engine.get(ready) if said is not None]
    if failed:
        raise RuntimeError(f"gt.launch.ray: a worker ended at once:\n{failed[0]}")
    wait(num_workers, cluster.address, cluster.token_file, max(1.0, deadline - time.monotonic()))


class _RayWorker:
    """One worker process, on the node and with the devices that Ray chose."""

    def __init__(self, address, token, name, args):
        host, _, port = address.rpartition(":")
        self.folder = tempfile.mkdtemp(prefix="gt-worker-")
        token_file = os.path.join(self.folder, "token")
        with open(os.open(token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(token)
        self.log = open(os.path.join(self.folder, "log"), "w+")  # noqa: SIM115
        command = [sys.executable, "-m", "gt.worker", "--host", host, "-p", port]
        command += ["--token-file", token_file, "--name", name, *args]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def alive(self):
        """None once the worker runs, else what it said when it ended."""
        for _ in range(5):
            if self.process.poll() is not None:
                self.log.seek(0)
                return self.log.read()
            time.sleep(0.1)
        return None

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
