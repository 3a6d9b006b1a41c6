"""Modules, losses and optimizers."""

import numpy as np
import pytest
from helpers import check, draw, needs_torch, ours, theirs, torch

import gt
from gt import nn

F = gt.nn.functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 5)
        self.fc2 = nn.Linear(5, 1, bias=False)
        self.scale = nn.Parameter(gt.ones(1))
        self.register_buffer("steps", gt.zeros(1, dtype=gt.int64))
        self.register_buffer("scratch", gt.zeros(2), persistent=False)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu()) * self.scale


def test_module_tree():
    net = Net()
    names = ["scale", "fc1.weight", "fc1.bias", "fc2.weight"]
    assert [n for n, _ in net.named_parameters()] == names
    assert [n for n, _ in net.named_children()] == ["fc1", "fc2"]
    assert [n for n, _ in net.named_modules()] == ["", "fc1", "fc2"]
    assert [n for n, _ in net.named_buffers()] == ["steps", "scratch"]
    assert list(net.state_dict()) == ["scale", "steps", "fc1.weight", "fc1.bias", "fc2.weight"]
    assert all(p.requires_grad and p.is_leaf for p in net.parameters())
    assert net.eval() is net and not net.fc1.training and net.train().fc1.training
    seen = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Linear", "Net"]
    assert repr(net) == (
        "Net(\n  (fc1): Linear(in_features=4, out_features=5, bias=True)\n"
        "  (fc2): Linear(in_features=5, out_features=1, bias=False)\n)"
    )
    with pytest.raises(AttributeError, match="no attribute 'fc3'"):
        _ = net.fc3
    with pytest.raises(TypeError):
        net.fc1 = 3
    net.fc1.bias = None
    assert "fc1.bias" not in net.state_dict()
    del net.fc2
    assert not hasattr(net, "fc2")

    class Early(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match="before"):
        Early()


def test_state_dict_round_trip():
    a, b = Net(), Net()
    assert repr(b.load_state_dict(a.state_dict())) == "<All keys matched successfully>"
    x = gt.randn(3, 4)
    check(b(x), a(x))
    state = a.state_dict()
    state["extra"] = state.pop("scale")
    with pytest.raises(RuntimeError, match=r"Missing key.*scale(?s:.)*Unexpected key.*extra"):
        b.load_state_dict(state)
    result = b.load_state_dict(state, strict=False)
    assert result.missing_keys == ["scale"] and result.unexpected_keys == ["extra"]
    state = a.state_dict()
    state["scale"] = gt.ones(2)
    with pytest.raises(RuntimeError, match="size mismatch for scale"):
        b.load_state_dict(state)


def test_conversions():
    net = Net().double()
    assert net.fc1.weight.dtype is gt.float64 and net.steps.dtype is gt.int64
    assert isinstance(net.fc1.weight, nn.Parameter) and net.fc1.weight.requires_grad
    assert net(gt.ones(2, 4, dtype="float64")).dtype is gt.float64
    assert str(net.to("cuda:0").fc1.weight.device) == "cuda:0"
    assert net.to(gt.float32).scale.dtype is gt.float32
    net(gt.ones(2, 4)).sum().backward()
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_module_hooks():
    layer = nn.Linear(2, 2)
    handle = layer.register_forward_hook(lambda m, args, out: out * 0)
    pre = layer.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    assert layer(gt.ones(1, 2)).tolist() == [[0, 0]]
    handle.remove()
    right = (gt.ones(1, 2) * 2) @ layer.weight.T + layer.bias
    check(layer(gt.ones(1, 2)), right)
    pre.remove()
    check(layer(gt.ones(1, 2)), gt.ones(1, 2) @ layer.weight.T + layer.bias)


def test_containers():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert len(net) == 3 and isinstance(net[1], nn.ReLU) and len(net[:2]) == 2
    assert list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    layers = nn.ModuleList([nn.Linear(1, 1) for _ in range(3)])
    layers.append(nn.Linear(1, 1))
    assert len(layers) == 4 and len(list(layers.parameters())) == 8 and layers[-1] is list(layers)[3]
    table = nn.ModuleDict({"a": nn.Linear(1, 1)})
    assert "a" in table and list(table.keys()) == ["a"]
    assert len(list(nn.ParameterList([gt.ones(1), gt.ones(2)]).parameters())) == 2


def test_linear_starts_like_pytorch():
    layer = nn.Linear(100, 50)
    weight = layer.weight.detach().numpy()
    assert np.abs(weight).max() <= 0.1 and abs(weight.std() - 0.1 / np.sqrt(3)) < 0.005
    assert nn.Linear(3, 2, bias=False).bias is None
    for f in (nn.init.kaiming_uniform_, nn.init.xavier_uniform_, nn.init.kaiming_normal_, nn.init.xavier_normal_):
        assert 0.01 < f(gt.empty(100, 50)).std().item() < 0.4
    assert nn.init.constant_(gt.empty(2), 3).tolist() == [3, 3]


# name, expression over functional F and tensors
LOSSES = {
    "mse": lambda F, p, y, logits, classes: F.mse_loss(p, y),
    "mse sum": lambda F, p, y, logits, classes: F.mse_loss(p, y, reduction="sum"),
    "mse none": lambda F, p, y, logits, classes: F.mse_loss(p, y, reduction="none"),
    "l1": lambda F, p, y, logits, classes: F.l1_loss(p, y),
    "smooth": lambda F, p, y, logits, classes: F.smooth_l1_loss(p, y, beta=0.3),
    "huber": lambda F, p, y, logits, classes: F.huber_loss(p, y, delta=0.3),
    "bce": lambda F, p, y, logits, classes: F.binary_cross_entropy(p, y),
    "bce weight": lambda F, p, y, logits, classes: F.binary_cross_entropy(p, y, y + 1),
    "bce logits": lambda F, p, y, logits, classes: F.binary_cross_entropy_with_logits(p * 4, y),
    "ce": lambda F, p, y, logits, classes: F.cross_entropy(logits, classes),
    "ce sum": lambda F, p, y, logits, classes: F.cross_entropy(logits, classes, reduction="sum"),
    "ce smooth": lambda F, p, y, logits, classes: F.cross_entropy(logits, classes, label_smoothing=0.1),
    "ce ignore": lambda F, p, y, logits, classes: F.cross_entropy(logits, classes, ignore_index=2),
    "ce soft": lambda F, p, y, logits, classes: F.cross_entropy(logits, logits.softmax(1).detach()),
    "nll": lambda F, p, y, logits, classes: F.nll_loss(logits.log_softmax(1), classes),
    "kl": lambda F, p, y, logits, classes: F.kl_div(logits.log_softmax(1), logits.softmax(1).detach() + 0.1),
    "cosine": lambda F, p, y, logits, classes: F.cosine_similarity(logits, logits.flip(0)),
}


@needs_torch
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_against_torch(kind):
    p, y = draw((6, 1), "float64", 0.05, 0.95), (draw((6, 1), "float64", seed=1) > 0).astype("float64")
    logits, classes = draw((6, 5), "float64", seed=2), draw((6,), "int64", 0, 4, seed=3)
    results = []
    for make, functional in ((ours, F), (theirs, torch.nn.functional)):
        a, b = make(p, grad=True), make(logits, grad=True)
        loss = LOSSES[kind](functional, a, make(y), b, make(classes))
        (loss * 1.5).sum().backward()
        results.append((loss, a.grad if a.grad is not None else b.grad))
    check(results[0], results[1])


def test_losses_by_name():
    p, y = ours(draw((4, 3), "float64", 0.1, 0.9)), ours(np.eye(4, 3))
    assert nn.mse_loss(p, y).item() == pytest.approx(((p - y) ** 2).mean().item())
    assert nn.binary_cross_entropy(p, y).item() == pytest.approx(-(y * p.log() + (1 - y) * (1 - p).log()).mean().item())
    classes = gt.tensor([0, 1, 2, 0])
    right = -p.log_softmax(1).gather(1, classes.unsqueeze(1)).mean().item()
    assert nn.cross_entropy_loss(p, classes).item() == pytest.approx(right)
    assert nn.CrossEntropyLoss()(p, classes).item() == pytest.approx(right)
    assert nn.MSELoss()(p, y).item() == nn.mse_loss(p, y).item()
    assert nn.BCELoss()(p, y).item() == nn.binary_cross_entropy(p, y).item()


OPTIMIZERS = {
    "sgd": lambda T, p: T.optim.SGD(p, lr=0.1),
    "momentum": lambda T, p: T.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda T, p: T.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampening": lambda T, p: T.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, maximize=True),
    "adam": lambda T, p: T.optim.Adam(p, lr=0.1),
    "adam decay": lambda T, p: T.optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True),
    "adamw": lambda T, p: T.optim.AdamW(p, lr=0.1, weight_decay=0.1),
}


@needs_torch
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_against_torch(kind):
    start = [draw((3, 2), "float64"), draw((2,), "float64", seed=1)]
    results = []
    for library, make in ((gt, ours), (torch, theirs)):
        params = [make(s, grad=True) for s in start]
        unused = make(start[0], grad=True)
        optimizer = OPTIMIZERS[kind](library, [*params, unused])
        for step in range(5):
            loss = ((params[0] @ params[1]) ** 2).sum() * (step + 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.append([*params, unused])
    check(results[0], results[1])


def test_optimizer_keeps_parameters_and_state():
    net = Net()
    before = list(net.parameters())
    optimizer = nn.SGD(net.parameters(), lr=0.1, momentum=0.9)
    assert isinstance(optimizer, gt.optim.SGD)
    for _ in range(2):
        optimizer.zero_grad()
        net(gt.ones(2, 4)).sum().backward()
        optimizer.step()
    assert all(a is b for a, b in zip(before, net.parameters()))
    again = nn.SGD(net.parameters(), lr=0.5, momentum=0.9)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["lr"] == 0.1 and len(again.state) == 4
    groups = nn.SGD([{"params": [before[0]], "lr": 1.0}, {"params": before[1:]}], lr=0.1)
    assert [g["lr"] for g in groups.param_groups] == [1.0, 0.1]
    for bad in (lambda: nn.SGD([], lr=0.1), lambda: nn.SGD(before, lr=-1), lambda: nn.SGD(before[0], lr=0.1)):
        with pytest.raises((ValueError, TypeError)):
            bad()


def test_clip_and_embedding():
    table = nn.Embedding(5, 3)
    index = gt.tensor([[0, 2], [2, 4]])
    check(table(index), table.weight.detach().numpy()[[[0, 2], [2, 4]]])
    table(index).sum().backward()
    assert table.weight.grad.sum(1).tolist() == [3, 0, 6, 0, 3]
    norm = nn.utils.clip_grad_norm_(table.parameters(), 1.0)
    assert norm.item() == pytest.approx(np.sqrt(3 * (1 + 4 + 1)))
    assert table.weight.grad.norm().item() == pytest.approx(1.0, rel=1e-4)
    assert F.one_hot(gt.tensor([1, 0]), 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    drop = nn.Dropout(0.5)
    x = drop(gt.ones(1000)).numpy()
    assert set(np.unique(x)) == {0.0, 2.0} and 400 < (x > 0).sum() < 600
    assert drop.eval()(gt.ones(3)).tolist() == [1, 1, 1]


def test_training_learns():
    gt.manual_seed(0)
    x = gt.randn(128, 4)
    y = (x[:, :1] * x[:, 1:2] > 0).float()
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1), nn.Sigmoid())
    optimizer = nn.SGD(net.parameters(), lr=0.5, momentum=0.9)
    first = last = None
    for _ in range(200):
        loss = nn.binary_cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        first = last if first is None else first
    assert last < 0.3 * first
