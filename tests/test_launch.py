"""Launchers: ssh, Slurm, Kubernetes, Ray; and two hosts for real, as network namespaces with addresses of their own."""

import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

import gt

pytestmark = pytest.mark.local_only

ROOT = pathlib.Path(__file__).resolve().parents[1]
GT = f"{sys.executable} -m gt"
# Runs the second argument in a shell, as sshd would on a host of that name.
HERE = '#!/bin/sh\nexec sh -c "$2"\n'

PROGRAM = """
import gt, numpy as np
a = np.random.default_rng(0).normal(size=(300, 300)).astype("f4")
x = gt.from_numpy(a)
np.testing.assert_allclose((x @ x).numpy(), a @ a, rtol=1e-3, atol=1e-3)
print("workers", len(gt.debug.get_worker_stats()["workers"]))
"""


def environment(**more):
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gt.__file__))}
    for name in ("GT_SERVER", "GT_TOKEN_FILE"):
        env.pop(name, None)
    return {**env, **more}


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def launch(*args, timeout=90, prefix=(), gt=GT, **env):
    command = [*prefix, sys.executable, "-m", "gt", "launch", "--gt", gt, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment(**env))


def processes(marker):
    """How many processes have this in their command line."""
    count = 0
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                count += marker.encode() in (entry / "cmdline").read_bytes()
            except OSError:
                pass
    return count


def gone(marker, seconds=10):
    deadline = time.monotonic() + seconds
    while processes(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes(marker) == 0


# ssh.


def test_hosts_get_their_workers_and_all_ends_with_the_program(tmp_path):
    ssh = executable(tmp_path / "ssh", HERE)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    args = ["--hosts", "a=2,user@b", "--per-host", "1", "-p", "0", "--ssh", ssh, "--address", "127.0.0.1"]
    args += ["--worker-args", "--threads 1"]
    done = launch(*args, "--", sys.executable, str(program), HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "workers 3" in done.stdout and "3 workers on 2 host(s) are ready" in done.stdout
    assert {"a-0", "a-1", "b-0"} <= set(re.findall(r"gt worker (\S+):", done.stdout))
    port = re.search(r"listens on 127.0.0.1:(\d+)", done.stdout).group(1)
    assert gone(f"-p\0{port}\0")


def test_the_status_of_the_program_is_that_of_the_launch(tmp_path):
    ssh = executable(tmp_path / "ssh", HERE)
    args = ["--hosts", "a", "-p", "0", "--ssh", ssh, "--address", "127.0.0.1"]
    done = launch(*args, "--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 7, done.stdout + done.stderr


def test_a_host_that_cannot_be_reached_is_named(tmp_path):
    ssh = executable(tmp_path / "ssh", '#!/bin/sh\necho "$1: no route to host" >&2\nexit 255\n')
    done = launch("--hosts", "far", "-p", "0", "--ssh", ssh, "--address", "127.0.0.1", "--timeout", "20")
    assert done.returncode == 1
    assert "[far] far: no route to host" in done.stdout and "launch: far: its workers ended" in done.stderr


def test_workers_that_do_not_come_are_told_in_time(tmp_path):
    ssh = executable(tmp_path / "ssh", HERE)
    # The workers look for the server where nobody listens.
    args = ["--hosts", "a", "-p", "0", "--ssh", ssh, "--address", "127.0.0.2", "--timeout", "4"]
    sleepy = executable(tmp_path / "gt", f'#!/bin/sh\n[ "$1" = worker ] && exec sleep 60\nexec {GT} "$@"\n')
    start = time.monotonic()
    done = launch(*args, gt=sleepy)
    assert done.returncode == 1 and time.monotonic() - start < 30
    assert re.search(r"0 of 1 workers are connected to .* and no more came in time", done.stderr), done.stderr


def test_bad_arguments():
    done = launch("--hosts", "a=x")
    assert done.returncode == 1 and "expected a number of workers" in done.stderr
    done = launch("--hosts", "-oProxyCommand=evil")
    assert done.returncode != 0


def test_wait(start_system):
    system = start_system(workers=2)
    gt.launch.wait(2, system.address, timeout=30)
    with pytest.raises(ConnectionError, match="2 of 3 workers are connected"):
        gt.launch.wait(3, system.address, timeout=1)
    with pytest.raises(ConnectionError, match="waited in vain for the server"):
        gt.launch.wait(1, "localhost:1", timeout=1)


# Slurm.


def test_the_slurm_script_with_stand_ins_for_slurm(tmp_path):
    """`srun` runs its tasks here: one for a step of one task, else all of the job."""
    tools = tmp_path / "bin"
    tools.mkdir()
    executable(tools / "scontrol", "#!/bin/sh\necho localhost\necho other\n")
    executable(
        tools / "srun",
        """#!/bin/bash
tasks=$SLURM_NTASKS
while [ "${1#--}" != "$1" ]; do
    [ "$1" = --ntasks=1 ] && tasks=1
    shift
done
trap 'kill $(jobs -p) 2>/dev/null' TERM
for i in $(seq 0 $((tasks - 1))); do SLURM_LOCALID=$i SLURMD_NODENAME=node "$@" & done
wait
""",
    )
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    port = 20000 + os.getpid() % 20000
    env = environment(
        PATH=f"{tools}:{os.environ['PATH']}",
        GT=GT,
        GT_PORT=str(port),
        GT_STATE=str(tmp_path / "state"),
        SLURM_JOB_ID="7",
        SLURM_JOB_NODELIST="nodes",
        SLURM_NTASKS="2",
    )
    command = ["bash", str(ROOT / "launchers/slurm/gt.sbatch"), sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "workers 2" in done.stdout and "node-0" in done.stdout and "node-1" in done.stdout
    assert gone(f"-p\0{port}\0") and not (tmp_path / "state").exists()


# Kubernetes.


def manifests():
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((ROOT / "launchers/kubernetes/gt.yaml").read_text()))


def test_manifests_fit_together():
    objects = {(o["kind"], o["metadata"]["name"]): o for o in manifests()}
    assert set(objects) == {
        ("Service", "gt-server"),
        ("Service", "gt-worker"),
        ("Deployment", "gt-server"),
        ("StatefulSet", "gt-worker"),
        ("Job", "gt-ready"),
    }
    for (kind, name), o in objects.items():
        assert o["apiVersion"] in ("v1", "apps/v1", "batch/v1")
        if kind == "Service":
            pods = [p["spec"]["template"] for p in objects.values() if "template" in p["spec"]]
            chosen = [p for p in pods if o["spec"]["selector"].items() <= p["metadata"]["labels"].items()]
            assert len(chosen) == 1, name
            open_ports = {p["name"]: p["containerPort"] for p in chosen[0]["spec"]["containers"][0]["ports"]}
            for port in o["spec"]["ports"]:
                assert open_ports[port.get("targetPort", port["name"])] == port["port"]
            continue
        pod = o["spec"]["template"]["spec"]
        volumes = {v["name"] for v in pod["volumes"]}
        if "selector" in o["spec"]:
            assert o["spec"]["selector"]["matchLabels"] == o["spec"]["template"]["metadata"]["labels"]
        for container in pod["containers"]:
            assert {m["name"] for m in container["volumeMounts"]} <= volumes
            # The program takes these arguments.
            args = [*container["command"][1:], "--help"]
            done = subprocess.run(
                [sys.executable, "-m", "gt", *args], capture_output=True, text=True, env=environment()
            )
            assert done.returncode == 0 and "Usage" in done.stdout, done.stderr
    assert objects["StatefulSet", "gt-worker"]["spec"]["serviceName"] == "gt-worker"


def test_manifests_are_what_kubernetes_takes():
    validate = pytest.importorskip("kubernetes_validate")
    for o in manifests():
        validate.validate(o, "1.30", strict=True)


# Ray.


def test_ray(tmp_path, run_python):
    pytest.importorskip("ray")
    done = run_python(
        """
import gt, numpy as np, ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
with gt.launch.ray(num_workers=2, timeout=90) as cluster:
    cluster.connect()
    workers = gt.debug.get_worker_stats()["workers"]
    print(sorted(w["name"] for w in workers))
    a = np.arange(6, dtype="f4").reshape(2, 3)
    print((gt.from_numpy(a) @ gt.from_numpy(a.T)).tolist())
    gt.disconnect()
try:
    gt.launch.ray(num_workers=3, num_cpus=2, timeout=5)
except TimeoutError as error:
    print("Ray placed" in str(error))
ray.shutdown()
""",
        timeout=110,
    )
    assert done.stdout.splitlines()[-3:] == ["['ray-0', 'ray-1']", "[[5.0, 14.0], [14.0, 50.0]]", "True"]


# Two hosts.


TURN = itertools.count()


@pytest.fixture
def hosts():
    """Three namespaces on one bridge, each with an address of its own: name -> address."""
    if os.getuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the program ip")
    # Other names each time: what was deleted goes a while later.
    tag = f"gt{os.getpid() % 10000}{next(TURN)}"
    names = {f"{tag}{letter}": f"10.214.7.{i}" for i, letter in enumerate("abc", 2)}

    def ip(*args):
        return subprocess.run(["ip", *args], capture_output=True, text=True)

    def clean():
        for name in names:
            ip("link", "del", f"{name}v")
            ip("netns", "del", name)
        ip("link", "del", f"{tag}br")

    if ip("link", "add", f"{tag}br", "type", "bridge").returncode:
        pytest.skip("this machine allows no bridge")
    try:
        ip("link", "set", f"{tag}br", "up")
        for name, address in names.items():
            steps = [
                ("netns", "add", name),
                ("link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name),
                ("link", "set", f"{name}v", "master", f"{tag}br", "up"),
                ("-n", name, "addr", "add", f"{address}/24", "dev", "eth0"),
                ("-n", name, "link", "set", "eth0", "up"),
                ("-n", name, "link", "set", "lo", "up"),
            ]
            for step in steps:
                done = ip(*step)
                # What the first host may, the others may too.
                if done.returncode and name == next(iter(names)) and "File exists" not in done.stderr:
                    pytest.skip(f"this machine allows no namespaces: ip {' '.join(step)}: {done.stderr}")
                assert done.returncode == 0, f"ip {' '.join(step)}: {done.stderr}"
        yield names
    finally:
        clean()


TWO_HOSTS = """
import gt, numpy as np, sys
rng = np.random.default_rng(0)
arrays = [rng.normal(size=(300, 300)).astype("f4") for _ in range(4)]
tensors = []
for a in arrays:
    tensors.append(gt.from_numpy(a) + 1)
    gt.synchronize()
total, want = tensors[0], arrays[0] + 1
for t, a in zip(tensors[1:], arrays[1:]):
    total, want = total @ t * 0.05, want @ (a + 1) * np.float32(0.05)
np.testing.assert_allclose(total.numpy(), want, rtol=1e-2, atol=1e-2)
stats = gt.debug.get_worker_stats()
print("workers", sorted(w["name"][-3:] for w in stats["workers"]), "moves", stats["moves"])
"""


def test_two_hosts(hosts, tmp_path):
    """Server on one, workers on both, tensors that have to meet across them."""
    ssh = executable(tmp_path / "ssh", '#!/bin/sh\nexec ip netns exec "$1" sh -c "$2"\n')
    program = tmp_path / "program.py"
    program.write_text(TWO_HOSTS)
    (one, address), (two, _), _ = hosts.items()
    args = ["--hosts", f"{one},{two}", "-p", "0", "--ssh", ssh, "--address", address, "--worker-args", "--threads 1"]
    prefix = ["ip", "netns", "exec", one]
    done = launch(*args, "--", sys.executable, str(program), prefix=prefix, GT_PLACEMENT="spread")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "workers ['a-0', 'b-0']" in done.stdout
    assert int(re.search(r"moves (\d+)", done.stdout).group(1)) > 0


def client_of(hosts, tmp_path, client, server):
    """A launch on the first two hosts, and a program on another that reaches the server under an address."""
    (one, address), (two, _), _ = hosts.items()
    ssh = executable(tmp_path / "ssh", '#!/bin/sh\nexec ip netns exec "$1" sh -c "$2"\n')
    token = tmp_path / "token"
    token.write_text("a secret")
    program = tmp_path / "program.py"
    program.write_text(TWO_HOSTS)
    port = "12399"
    command = ["ip", "netns", "exec", one, *GT.split(), "launch", "--gt", GT, "--hosts", f"{one},{two}", "-p", port]
    command += ["--ssh", ssh, "--address", address, "--token-file", str(token), "--worker-args", "--threads 1"]
    launched = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment())
    try:
        env = environment(GT_SERVER=f"{server}:{port}", GT_TOKEN_FILE=str(token), GT_PLACEMENT="spread")
        there = ["ip", "netns", "exec", client]
        waited = subprocess.run([*there, *GT.split(), "wait", "-w", "2", "--timeout", "60"], timeout=90, env=env)
        assert waited.returncode == 0
        done = subprocess.run(
            [*there, sys.executable, str(program)], capture_output=True, text=True, timeout=60, env=env
        )
        assert done.returncode == 0, done.stderr
        assert "workers ['a-0', 'b-0']" in done.stdout
    finally:
        launched.terminate()
        assert launched.wait(20) == 0


def test_a_client_on_a_third_host(hosts, tmp_path):
    """The client reaches the server, and the workers directly, from an address of its own."""
    (_, server), _, (three, _) = hosts.items()
    client_of(hosts, tmp_path, three, server)


def test_a_client_that_reaches_only_the_server(hosts, tmp_path):
    """Behind a road of its own to the server's host, with no way to the other: the server relays what is there."""
    one, outside = next(iter(hosts)), f"{next(iter(hosts))}x"
    steps = [
        f"netns add {outside}",
        f"-n {one} link add out type veth peer name eth0 netns {outside}",
        f"-n {one} addr add 10.214.8.1/24 dev out",
        f"-n {one} link set out up",
        f"-n {outside} addr add 10.214.8.2/24 dev eth0",
        f"-n {outside} link set eth0 up",
        f"-n {outside} link set lo up",
    ]
    try:
        for step in steps:
            subprocess.run(["ip", *step.split()], check=True, capture_output=True)
        client_of(hosts, tmp_path, outside, "10.214.8.1")
    finally:
        subprocess.run(["ip", "netns", "del", outside], capture_output=True)
