"""Signals: configurations and their errors, contexts, marks on what is recorded, modules, edits of the file."""

import os
import textwrap
import threading

import numpy as np
import pytest

import gt
from gt import _gt, nn

pytestmark = pytest.mark.local_only


@pytest.fixture(autouse=True)
def no_signals():
    _gt._signal_clear()
    yield
    _gt._signal_clear()


def write(path, text):
    path.write_text(textwrap.dedent(text))
    return str(path)


def tape():
    """The instructions not yet sent, as (op, mark)."""
    lines = []
    for line in gt.debug.get_tape():
        op = line.split(" := ")[1].split()[0]
        lines.append((op, line.split(" @")[1] if " @" in line else None))
    return lines


def config_error(tmp_path, text):
    path = write(tmp_path / "bad.yaml", text)
    with pytest.raises(ValueError) as error:
        gt.load_config(path)
    return str(error.value).replace(path, "bad.yaml")


# Configurations.


def test_the_forms_of_the_seeds(tmp_path):
    path = write(
        tmp_path / "sharding.yaml",
        """
        hot_path:
          shard:
            axis: 0
            workers: [0, 1, 2, 3]
          compile: true  # Mark as compilation boundary
        data_parallel:
          shard:
            axis: 0              # Batch dimension
            workers: [0, 1, 2, 3]
        model_parallel:
          shard:
            axis: 1              # Feature dimension
            workers: [0, 1]
        stage_1:
          shard:
            axis: 0
            workers: [0, 1]
          backward: stage_1_backward
        """,
    )
    assert list(gt.load_config(path)) == ["hot_path", "data_parallel", "model_parallel", "stage_1"]
    config = gt.get_config()
    assert config["hot_path"] == gt.SignalConfig(shard=gt.ShardConfig(0, [0, 1, 2, 3]), compile=True)
    assert gt.get_signal_config("stage_1").backward_signal == "stage_1_backward"
    assert gt.get_signal_config("model_parallel").shard.axis == 1
    assert gt.get_signal_config("nobody") is None


def test_register_config():
    config = gt.SignalConfig(
        shard=gt.ShardConfig(axis=1, workers=[0, 1], replicated=False), backward_signal="b", compile=False
    )
    gt.register_config("a", config)
    assert gt.get_signal_config("a") == config
    gt.register_config("a", gt.SignalConfig(shard=gt.ShardConfig(replicated=True)))
    assert gt.get_signal_config("a").shard.replicated
    with pytest.raises(ValueError, match='register_config: signal "b": shard: axis: expected a whole number'):
        gt.register_config("b", gt.SignalConfig(shard=gt.ShardConfig(axis="x")))
    with pytest.raises(TypeError, match="expected a SignalConfig"):
        gt.register_config("b", {"shard": None})


@pytest.mark.parametrize(
    "text, message",
    [
        ("a:\n  shrd: {}\n", 'bad.yaml:2: signal "a": unknown key "shrd"'),
        ("a:\n  shard:\n    axis: one\n", 'bad.yaml:3: signal "a": shard: axis: expected a whole number'),
        ("a:\n  shard:\n    axis: 100\n", 'bad.yaml:3: signal "a": shard: no tensor has an axis 100'),
        ("a:\n\n  preset: none\n", 'bad.yaml:3: signal "a": there is no preset "none"'),
        ("a: [\n", "bad.yaml:"),
    ],
)
def test_errors_name_file_and_line(tmp_path, text, message):
    assert config_error(tmp_path, text).startswith(message)


def test_names_that_are_known_are_told_once_each(tmp_path):
    text = "a: {shard: {axis: 0}, modules: {'layers.*': c}}\nb: {}\n"
    gt.register_config("a", gt.SignalConfig(compile=True))
    assert config_error(tmp_path, text).endswith('modules: there is no signal "c", only a, b')


def test_arguments_of_wrong_types_are_named(ab):
    for call, message in [
        (lambda: gt.signal.context(3).__enter__(), "signal.enter: expected the name of a signal, got int"),
        (lambda: gt.signal.enter("a", backward=3), "signal.enter: expected the name of a signal, got int"),
        (lambda: gt.signal.exit(3), "signal.exit: expected the name of a signal, got int"),
        (lambda: gt.signal.tensor(np.ones(3), name="a"), "signal.tensor: expected a tensor, got ndarray"),
        (lambda: gt.signal.tensor(gt.ones(3), name=None), "signal.tensor: expected the name of a signal, got NoneType"),
        (lambda: gt.register_config(None, gt.SignalConfig()), "register_config: expected the name of a signal"),
    ]:
        with pytest.raises(TypeError, match=message):
            call()
        assert gt.signal.current() is None


def test_whole_numbers_of_numpy_are_numbers():
    shard = gt.ShardConfig(axis=np.int64(1), workers=np.arange(2))
    gt.register_config("a", gt.SignalConfig(shard=shard))
    assert gt.get_signal_config("a").shard == gt.ShardConfig(axis=1, workers=[0, 1])
    with pytest.raises(TypeError, match="float64 cannot be part"):
        gt.register_config("a", gt.SignalConfig(shard=gt.ShardConfig(axis=np.float64(1))))


def test_a_wrong_file_changes_nothing(tmp_path):
    gt.register_config("a", gt.SignalConfig(compile=True))
    config_error(tmp_path, "a:\n  compile: 7\n")
    assert gt.get_signal_config("a").compile
    with pytest.raises(FileNotFoundError, match="absent.yaml"):
        gt.load_config(tmp_path / "absent.yaml")
    with pytest.raises(IsADirectoryError):
        gt.load_config(tmp_path)


def test_gt_config_is_read_at_the_start(tmp_path, run_python):
    path = write(tmp_path / "c.yaml", "a: {shard: {axis: 0, workers: [0]}}\n")
    done = run_python(
        """
import gt
with gt.signal.context("a"):
    x = gt.randn(4, 4)
print(gt.get_signal_config("a").shard.workers, gt.debug.get_tape()[0].split(" @")[1])
""",
        env={"GT_CONFIG": path},
    )
    assert done.stdout.split() == ["[0]", "a!"]
    write(tmp_path / "c.yaml", "a: {shard: {axes: 0}}\n")
    done = run_python("import gt\ngt.ones(2)", env={"GT_CONFIG": path}, check=False)
    assert f'GT_CONFIG: {path}:1: signal "a": shard: unknown key "axes"' in done.stderr and done.returncode


# Contexts.


@pytest.fixture
def ab():
    gt.register_config("a", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0])))
    gt.register_config("b", gt.SignalConfig(shard=gt.ShardConfig(axis=1, workers=[0])))
    gt.register_config("back", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0])))
    gt.synchronize()


def test_the_innermost_context_counts(ab):
    x = gt.randn(4, 4)
    with gt.signal.context("a"):
        y = x + 1
        with gt.signal.context("b"):
            assert gt.signal.current() == "b"
            z = y * 2
        w = z - 1
    v = w + 1
    assert [mark for _, mark in tape()] == [None, "a", "b", "a", None]
    np.testing.assert_allclose(v.numpy(), (x.numpy() + 1) * 2)


def test_what_comes_from_outside_is_firm_and_what_is_computed_is_not(ab):
    with gt.signal.context("a"):
        random, data, kept = gt.randn(4, 4), gt.tensor([[1.0, 2.0]]), gt.zeros(3)
        scalar = gt.tensor(1.0)
        computed = random * 2
        used_up = (gt.ones(4) + 1).sum()
    assert [m for _, m in tape() if m and m.endswith("!")] == ["a!", "a!"]
    gt.synchronize()
    del random, data, kept, scalar, computed, used_up


def test_large_uploads_are_laid_out(ab):
    array = np.random.default_rng(0).normal(size=(300, 300)).astype("f4")
    with gt.signal.context("a"):
        x = gt.from_numpy(array)
    assert tape() == [("RESHAPE", "a!")]
    np.testing.assert_array_equal(x.numpy(), array)


def test_enter_and_exit(ab):
    gt.signal.enter("a")
    gt.signal.enter("b")
    with pytest.raises(RuntimeError, match='innermost signal is "b", not "a"'):
        gt.signal.exit("a")
    gt.signal.exit("b")
    assert gt.signal.current() == "a"
    gt.signal.exit()
    with pytest.raises(RuntimeError, match="no signal was entered"):
        gt.signal.exit()


def test_a_context_ends_with_an_error_and_decorates(ab):
    with pytest.raises(ZeroDivisionError), gt.signal.context("a"):
        1 / 0  # noqa: B018
    assert gt.signal.current() is None

    @gt.signal.context("b")
    def f():
        return gt.signal.current()

    assert f() == "b" and gt.signal.current() is None


def test_contexts_belong_to_their_thread(ab):
    seen = []
    with gt.signal.context("a"):
        thread = threading.Thread(target=lambda: seen.append(gt.signal.current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_names_without_a_meaning_do_nothing_and_are_told_once(ab, capfd):
    with gt.signal.context("nobody"), gt.signal.context("nobody"):
        gt.ones(3)
    assert tape() == [("FULL", None)]
    gt.signal.tensor(gt.ones(2), "nobody")
    told = capfd.readouterr().err
    assert told.count('signal "nobody" is not in the configuration') == 1
    _gt._signal_clear()
    with gt.signal.context("nobody"):
        gt.ones(3)
    assert capfd.readouterr().err == ""


# Backward passes.


def backward_marks(record):
    x = gt.randn(4, 4, requires_grad=True)
    y = record(x)
    gt.synchronize()
    y.backward()
    marks = {mark for _, mark in tape() if mark}
    grad = x.grad.numpy()
    np.testing.assert_allclose(grad, 2 * np.exp(2 * x.detach().numpy()), rtol=1e-5)
    return marks


def test_the_backward_pass_is_marked_as_the_forward(ab):
    def record(x):
        with gt.signal.context("a"):
            return (x * 2).exp().sum()

    assert backward_marks(record) == {"a"}


def test_another_signal_for_the_backward_pass(ab):
    def record(x):
        with gt.signal.context("a", backward="back"):
            return (x * 2).exp().sum()

    assert backward_marks(record) == {"back"}
    gt.register_config("c", gt.SignalConfig(shard=gt.ShardConfig(workers=[0]), backward_signal="back"))

    def by_config(x):
        with gt.signal.context("c"):
            return (x * 2).exp().sum()

    assert backward_marks(by_config) == {"back"}


def test_a_backward_signal_that_is_left_open_is_the_forward_one(ab, capfd):
    gt.register_config("c", gt.SignalConfig(shard=gt.ShardConfig(workers=[0]), backward_signal="open"))

    def record(x):
        with gt.signal.context("c"):
            return (x * 2).exp().sum()

    assert backward_marks(record) == {"c"} and capfd.readouterr().err == ""


# Single tensors.


def test_signal_tensor(ab):
    x = gt.randn(4, 4, requires_grad=True)
    y = gt.signal.tensor(x, name="b")
    assert tape()[-1] == ("RESHAPE", "b!")
    (y * y).sum().backward()
    np.testing.assert_allclose(y.detach().numpy(), x.detach().numpy())
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.detach().numpy(), rtol=1e-6)
    with pytest.raises(IndexError, match='signal "b": axis 1 of a tensor of shape'):
        gt.signal.tensor(gt.ones(3), name="b")


# Compilation boundaries.


def test_a_compiled_boundary_is_a_program_of_its_own(run_python):
    done = run_python(
        """
import gt
gt.register_config("hot", gt.SignalConfig(compile=True))
x = gt.randn(64, 64)
y = x + 1
with gt.signal.context("hot"):
    assert gt.debug.get_tape() == []
    z = (y * 2).exp()
    assert len(gt.debug.get_tape()) == 2
assert gt.debug.get_tape() == []
print((z - 1).sum().item() > 0, gt.debug.get_worker_stats()["programs"])
"""
    )
    assert done.stdout.split() == ["True", "3"]


# Modules.


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


def test_parameters_are_laid_out_when_the_model_is_called(ab):
    gt.register_config(
        "train", gt.SignalConfig(workers=[0], layout=0, parameters={"layers.*.weight": 1, "*.weight": 0})
    )
    gt.manual_seed(0)
    model = Net()
    ids = gt.tensor([[1, 2], [3, 4]])
    plain = model(ids).detach().numpy()
    with gt.signal.context("train"):
        y = model(ids)
    laid_out = [op for op, mark in tape() if op == "RESHAPE" and mark == "train!"]
    assert len(laid_out) == 6
    np.testing.assert_array_equal(y.detach().numpy(), plain)
    with gt.signal.context("train"):
        model(ids)
    assert not [op for op, mark in tape() if op == "RESHAPE" and mark == "train!"]


def test_laid_out_parameters_stay_so_when_they_are_written(ab):
    gt.register_config("train", gt.SignalConfig(preset="fsdp", workers=[0]))
    model = nn.Linear(4, 4)
    gt.synchronize()
    gt.signal.apply(model, "train")
    gt.synchronize()
    optimizer = gt.optim.AdamW(model.parameters(), lr=0.1)
    model(gt.ones(2, 4)).sum().backward()
    optimizer.step()
    assert [mark for op, mark in tape() if op.startswith("ADAM")] == ["train!"]
    with gt.no_grad():
        model.weight.copy_(gt.ones(4, 4))
    assert tape()[-1] == ("FULL", "train!")
    np.testing.assert_array_equal(model.weight.detach().numpy(), np.ones((4, 4), "f4"))


def test_a_rule_that_cannot_fit_names_its_line(tmp_path):
    path = write(tmp_path / "c.yaml", "train:\n  workers: [0]\n  parameters:\n    '*': 1\n")
    gt.load_config(path)
    with pytest.raises(ValueError, match='c.yaml:4: .* axis 1 of "bias", which has shape'):
        gt.signal.apply(nn.Linear(3, 3), "train")


def test_what_no_signal_can_mean_is_told_with_its_line(tmp_path):
    twice = config_error(tmp_path, "pipe:\n  preset: pipeline\n  stages: [[0], [1, 1]]\n")
    assert "bad.yaml:3" in twice and "worker 1 stands here twice" in twice
    for axis in (64, -65):
        assert "bad.yaml:2" in config_error(tmp_path, f"a:\n  shard: {{axis: {axis}}}\n")
    open_choice = "a:\n  workers: [0]\n  parameters:\n    'x[1': whole\n"
    assert "without its `]`" in config_error(tmp_path, open_choice)
    assert "2 places and 3 workers" in config_error(tmp_path, "meshes:\n  g: {axes: {x: 2}, workers: [0, 1, 2]}\n")
    assert "3 workers" in config_error(tmp_path, "meshes:\n  g: {axes: {x: 2, y: rest}, workers: [0, 1, 2]}\n")


def test_a_pipeline_of_workers_that_are_not_there_uses_those_that_are():
    gt.register_config("pipe", gt.SignalConfig(preset="pipeline", stages=[[2, 0], [1], [5, 7]]))
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    x = gt.randn(3, 4)
    right = model(x).detach().numpy()
    with gt.signal.context("pipe"):
        y = model(x)
    y.sum().backward()
    np.testing.assert_allclose(y.detach().numpy(), right, rtol=1e-5, atol=1e-6)
    assert all(p.grad is not None for p in model.parameters())


def test_a_context_leaves_all_that_was_entered_in_it():
    with pytest.raises(KeyError, match="mine"), gt.signal.context("a"):
        gt.signal.enter("b")
        raise KeyError("mine")
    assert gt.signal.current() is None
    with pytest.raises(RuntimeError, match="innermost"), gt.signal.context("a"):
        gt.signal.enter("b")
    assert gt.signal.current() is None
    with pytest.raises(TypeError, match="in pieces"):

        @gt.signal.context("a")
        def generator():
            yield 1

    with pytest.raises(TypeError, match=r"signal\.tensor"):
        gt.signal.apply(gt.ones(2), "a")


def test_stages_of_a_pipeline():
    gt.register_config("pipe", gt.SignalConfig(preset="pipeline", stages=2))
    gt.manual_seed(0)
    model = Net()
    ids = gt.tensor([[1, 2], [3, 4]])
    plain = model(ids).detach().numpy()
    gt.synchronize()
    with gt.signal.context("pipe"):
        y = model(ids)
    # What the first stage runs is on its way already: a program is on one mesh.
    assert [mark.rstrip("!") for op, mark in tape() if op in ("MATMUL", "TAKE")] == ["pipe.1"] * 3
    np.testing.assert_array_equal(y.detach().numpy(), plain)
    loss = y.sum()
    gt.synchronize()
    loss.backward()
    # The pass ends in a cut too, so that the first stage need not wait for its gradient before it goes on.
    assert tape() == []
    total = loss.detach() + 1
    with gt.signal.context("pipe"):
        assert tape() == [], "what was recorded outside is not part of the first stage's program"
    assert total.item() == pytest.approx(loss.item() + 1)
    assert model.layers[0].weight.grad.abs().sum().item() > 0


def test_stages_of_a_row_of_modules():
    gt.register_config("row", gt.SignalConfig(preset="pipeline", stages=2))
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    gt.signal.apply(model, "row")
    assert [layer._signal for layer in model] == ["row.0", "row.0", "row.1", "row.1"]


def test_modules_by_pattern():
    gt.register_config("one", gt.SignalConfig(workers=[0]))
    gt.register_config("net", gt.SignalConfig(modules={"layers.[0-1]": "one"}))
    model = Net()
    gt.synchronize()
    with gt.signal.context("net"):
        model(gt.tensor([[1, 2]]))
    marks = [mark for op, mark in tape() if op == "MATMUL"]
    assert marks == ["one", "one", None, None, None]


# Workers that are not there.


def test_missing_workers_are_told_once_and_none_at_all_is_an_error(run_python):
    done = run_python(
        """
import gt
gt.register_config("wide", gt.SignalConfig(shard=gt.ShardConfig(workers=[0, 1, 2, 3])))
gt.register_config("gone", gt.SignalConfig(shard=gt.ShardConfig(workers=[7, 8])))
gt.register_config("many", gt.SignalConfig(workers=[0, 5], layout=0, parameters={"*weight": 1}))
with gt.signal.context("many"):
    gt.nn.Linear(4, 4)(gt.ones(2, 4)).sum().item()
for _ in range(3):
    with gt.signal.context("wide"):
        print((gt.randn(4, 4) + 1).sum().item() > -100)
with gt.signal.context("gone"):
    x = gt.randn(4)
try:
    print(x.tolist())
except ValueError as error:
    print(error)
print(gt.ones(2).tolist())
"""
    )
    assert done.stderr.count('signal "wide": workers [1, 2, 3] are not there; it goes on with workers [0]') == 1
    assert done.stderr.count("workers [5] are not there") == 1, "whatever layouts it means"
    lines = done.stdout.splitlines()
    assert lines[:3] == ["True"] * 3 and lines[-1] == "[1.0, 1.0]"
    assert 'signal "gone": none of its workers [7, 8] is there, only worker 0 is connected' in lines[3]


# Edits while a program runs.


def test_a_file_is_watched_from_another_folder_too(tmp_path, monkeypatch):
    path, other = tmp_path / "c.yaml", tmp_path / "other"
    other.mkdir()
    write(path, "moved: {layout: 0}\n")
    write(other / "c.yaml", "moved: {layout: 3}\n")
    monkeypatch.chdir(tmp_path)
    gt.load_config("c.yaml")
    monkeypatch.chdir(other)
    write(path, "moved: {layout: 1}\n# edited\n")
    os.utime(path, ns=(1, 10**18))
    gt.ones(3).sum().item()
    assert gt.get_signal_config("moved").layout == 1


def test_an_edited_file_counts_from_the_next_step_on(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("GT_VERBOSE", "1")
    path = tmp_path / "c.yaml"
    gt.load_config(write(path, "train: {workers: [0], layout: 0, parameters: {'*weight': 0}}\n"))
    model = nn.Linear(4, 4)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)

    def step():
        with gt.signal.context("train"):
            loss = model(gt.ones(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return [m for op, m in tape() if op == "RESHAPE" and m and m.endswith("!")]

    step()
    gt.synchronize()
    assert step() == []
    before = model.weight.detach().numpy()
    write(path, "train: {workers: [0], layout: 0, parameters: {'*weight': 1}}\n# edited\n")
    os.utime(path, ns=(1, 10**18))
    step()
    told = capfd.readouterr().err
    assert "signals changed: 1 tensors of 0.0 MB laid out anew" in told and "ms" in told
    assert gt.get_signal_config("train").parameters == {"*weight": 1}
    np.testing.assert_allclose(model.weight.detach().numpy(), before - 0.2, rtol=1e-5)
    # A file that is wrong for a while changes nothing.
    write(path, "train: {wrkers: [0]}\n")
    os.utime(path, ns=(1, 2 * 10**18))
    step()
    told = capfd.readouterr().err
    assert 'c.yaml:1: signal "train": unknown key "wrkers"' in told and "until the file is right" in told
    assert gt.get_signal_config("train").parameters == {"*weight": 1}
    # Nor does one whose rules do not fit the parameters they are about.
    write(path, "train:\n  workers: [0]\n  parameters: {'*weight': 2}\n")
    os.utime(path, ns=(1, 3 * 10**18))
    step()
    step()
    told = capfd.readouterr().err
    assert told.count("c.yaml:3: ") == 1 and "until the file is right" in told
    assert gt.get_signal_config("train").parameters == {"*weight": 1}


def test_a_pipeline_that_cannot_be_split_so_names_the_line(tmp_path):
    path = tmp_path / "signals.yaml"
    model = gt.nn.Sequential(gt.nn.Linear(2, 2))
    path.write_text("pipe_a:\n  preset: pipeline\n  stages: 2\n  split: layers\n")
    gt.load_config(str(path))
    with pytest.raises(ValueError, match="signals.yaml:4: signal 'pipe_a': split: there is no module 'layers'"):
        gt.signal.apply(model, "pipe_a")
    path.write_text("pipe_b:\n  preset: pipeline\n  stages: 2\n")
    gt.load_config(str(path))
    with pytest.raises(ValueError, match="signals.yaml:2: signal 'pipe_b': no list of layers to split"):
        gt.signal.apply(gt.nn.Linear(2, 2), "pipe_b")
