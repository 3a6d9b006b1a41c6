"""The life of a module: printing, hooks, saving and loading, conversions, shared parameters."""

import copy
import pickle

import numpy as np
import pytest
from helpers import check, draw, needs_new_torch, needs_torch, torch

import gt
from gt import nn

LAYERS = [
    "Linear(2, 3)",
    "Linear(2, 3, bias=False)",
    "Embedding(5, 3)",
    "Embedding(5, 3, padding_idx=0)",
    "LayerNorm(4)",
    "LayerNorm((4, 3), eps=1e-6, bias=False)",
    "LayerNorm(4, elementwise_affine=False)",
    "RMSNorm(4)",
    "RMSNorm((2, 4), eps=1e-6)",
    "Dropout(0.1)",
    "GELU()",
    "GELU('tanh')",
    "SiLU()",
    "SiLU(inplace=True)",
    "ReLU()",
    "ReLU(True)",
    "ReLU6()",
    "Mish()",
    "Hardtanh()",
    "Hardsigmoid()",
    "Hardswish()",
    "LogSigmoid()",
    "Softsign()",
    "SELU()",
    "CELU()",
    "GLU()",
    "Tanhshrink()",
    "Softshrink()",
    "Hardshrink()",
    "Threshold(0.1, 20)",
    "PReLU()",
    "Softmin(1)",
    "Softmax(-1)",
    "LogSoftmax(1)",
    "CrossEntropyLoss()",
    "MSELoss()",
    "L1Loss()",
    "SmoothL1Loss()",
    "HuberLoss()",
    "KLDivLoss()",
    "NLLLoss()",
    "BCELoss()",
    "BCEWithLogitsLoss()",
    "CosineSimilarity()",
    "Identity()",
    "Sigmoid()",
    "Tanh()",
    "LeakyReLU(0.2)",
    "LeakyReLU(0.2, inplace=True)",
    "ELU()",
    "ELU(2.0, inplace=True)",
    "Softplus()",
    "Flatten()",
    "Unflatten(1, (2, 3))",
    "Bilinear(2, 3, 4)",
    "ModuleList([])",
    "Sequential()",
    "ModuleDict()",
]


@needs_torch
@pytest.mark.parametrize("layer", LAYERS)
def test_prints_as_torch_prints(layer):
    if layer.startswith("LayerNorm"):
        needs_new_torch("how LayerNorm is printed")
    assert repr(eval(f"nn.{layer}")) == repr(eval(f"torch.nn.{layer}"))


@needs_torch
def test_trees_print_as_torch_prints():
    def tree(nn):
        return nn.Sequential(
            nn.ModuleList([nn.Sequential(nn.Linear(1, 1), nn.ReLU()) for _ in range(3)] + [nn.ReLU()]),
            nn.ModuleDict({"a": nn.Linear(1, 2), "b": nn.ModuleList([nn.Linear(1, 1)] * 2)}),
            nn.CrossEntropyLoss(),
        )

    assert repr(tree(nn)) == repr(tree(torch.nn))


ACTIVATIONS = [layer for layer in LAYERS[10:32] + ["LeakyReLU(0.2)", "ELU(2.0)", "Softplus(2.0)", "Softmax(-1)"]]


@needs_torch
@pytest.mark.parametrize("layer", ACTIVATIONS)
def test_activations_against_torch(layer):
    x = draw((4, 6), "float64")
    x[0, 0], x[1, 1] = 7.0, -7.0
    results = []
    for library in (gt, torch):
        leaf = library.tensor(x, requires_grad=True)
        module = eval(f"nn.{layer}", {"nn": library.nn}).to(library.float64)
        y = module(leaf * 1)
        (y * y).sum().backward()
        results.append((y, leaf.grad))
    # PyTorch's own constants of some activations are of 32 bits.
    check(results[0], results[1], (1e-7, 1e-8))


@needs_torch
def test_norms_and_bilinear_against_torch():
    x, y = draw((3, 5, 4), "float64"), draw((3, 5, 2), "float64", seed=1)
    for layer in ("LayerNorm(4)", "LayerNorm((5, 4), bias=False)", "RMSNorm(4)", "RMSNorm((5, 4), eps=0.1)"):
        results = []
        for library in (gt, torch):
            leaf = library.tensor(x, requires_grad=True)
            module = eval(f"nn.{layer}", {"nn": library.nn}).to(library.float64)
            with library.no_grad():
                for p in module.parameters():
                    p.copy_(library.tensor(draw(tuple(p.shape), "float64", 0.5, 1.5, seed=2)))
            out = module(leaf)
            (out**3).sum().backward()
            results.append((out, leaf.grad, *(p.grad for p in module.parameters())))
        check(results[0], results[1])
    theirs = torch.nn.Bilinear(4, 2, 3).double()
    mine = nn.Bilinear(4, 2, 3).double()
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    check(mine(gt.tensor(x), gt.tensor(y)), theirs(torch.tensor(x), torch.tensor(y)))


ATTENTION = {
    "plain": lambda F, q, k, v, mask, bias: F.scaled_dot_product_attention(q, k, v),
    "causal": lambda F, q, k, v, mask, bias: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scale": lambda F, q, k, v, mask, bias: F.scaled_dot_product_attention(q, k, v, scale=0.7),
    "mask": lambda F, q, k, v, mask, bias: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
    "bias": lambda F, q, k, v, mask, bias: F.scaled_dot_product_attention(q, k, v, attn_mask=bias),
}


@needs_torch
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_against_torch(kind, groups):
    results = []
    mask = np.tril(np.ones((5, 7), bool), 2)
    for library in (gt, torch):
        q = library.tensor(draw((2, 4, 5, 8), "float64"), requires_grad=True)
        k = library.tensor(draw((2, groups, 7, 8), "float64", seed=1), requires_grad=True)
        v = library.tensor(draw((2, groups, 7, 6), "float64", seed=2), requires_grad=True)
        bias = library.tensor(draw((2, 1, 5, 7), "float64", seed=3))

        def attention(*args, library=library, **options):
            return library.nn.functional.scaled_dot_product_attention(*args, enable_gqa=groups != 4, **options)

        functional = type("F", (), {"scaled_dot_product_attention": staticmethod(attention)})
        out = ATTENTION[kind](functional, q, k, v, library.tensor(mask), bias)
        (out**2).sum().backward()
        results.append((out, q.grad, k.grad, v.grad))
    check(results[0], results[1])


def hooked(library):
    """What full backward hooks see and change, as NumPy values."""
    seen = []

    def note(kind):
        def hook(module, *grads):
            seen.append((kind, [[None if g is None else g.tolist() for g in part] for part in grads]))

        return hook

    inner = library.nn.Linear(2, 2)
    with library.no_grad():
        inner.weight.copy_(library.tensor([[1.0, 2.0], [3.0, 4.0]]))
        inner.bias.copy_(library.tensor([0.5, -0.5]))
    net = library.nn.Sequential(library.nn.Linear(2, 2), inner)
    with library.no_grad():
        net[0].weight.copy_(library.tensor([[1.0, 0.0], [0.0, 2.0]]))
        net[0].bias.copy_(library.tensor([0.0, 0.0]))
    net[0].register_full_backward_hook(note("first"))
    inner.register_full_backward_pre_hook(note("before"))
    inner.register_full_backward_hook(note("after"))
    handle = inner.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    x = library.tensor([[1.0, 2.0]])
    net(x).sum().backward()
    seen.append([p.grad.tolist() for p in net.parameters()])
    handle.remove()
    leaf = library.tensor([[1.0, 2.0]], requires_grad=True)
    inner.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    net(leaf).sum().backward()
    seen.append(leaf.grad.tolist())
    return seen


@needs_torch
def test_backward_hooks_against_torch():
    mine, right = hooked(gt), hooked(torch)
    assert mine == right


def test_backward_hooks():
    seen = hooked(gt)
    assert [s[0] for s in seen[:3]] == ["before", "after", "first"]
    assert seen[1][1] == [[[[4.0, 6.0]]], [[[1.0, 1.0]]]]
    assert seen[2][1] == [[None], [[[8.0, 12.0]]]]


def test_forward_hooks():
    layer = nn.Linear(2, 2)
    seen = []
    layer.register_forward_hook(lambda m, args, kwargs, out: seen.append(list(kwargs)), with_kwargs=True)
    layer.register_forward_hook(lambda m, args, out: seen.append("first"), prepend=True)
    layer.register_forward_hook(lambda m, args, out: seen.append("always"), always_call=True)
    pre = layer.register_forward_pre_hook(
        lambda m, args, kwargs: (args, {"input": kwargs["input"] * 0}), with_kwargs=True
    )
    check(layer(input=gt.ones(1, 2)), layer.bias.detach().unsqueeze(0))
    assert seen == ["first", ["input"], "always"]
    pre.remove()
    with pytest.raises(RuntimeError):
        layer(gt.ones(1, 3))
    assert seen[3:] == ["always"]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", gt.ones(1))
        self.register_buffer("steps", gt.zeros(1, dtype=gt.int64))
        self.register_buffer("scratch", gt.ones(2), persistent=False)

    def forward(self, x):
        return self.head(self.table(x)) * self.scale


def test_shared_parameters_stay_shared():
    net = Tied()
    assert len(list(net.parameters())) == 1 and len(list(net.named_parameters(remove_duplicate=False))) == 2
    assert list(net.state_dict()) == ["scale", "steps", "table.weight", "head.weight"]
    net.table.weight.grad = gt.ones(4, 3)
    for change in (
        nn.Module.double,
        lambda n: n.to(gt.bfloat16),
        copy.deepcopy,
        lambda n: pickle.loads(pickle.dumps(n)),
    ):
        changed = change(net)
        assert changed.head.weight is changed.table.weight and isinstance(changed.head.weight, nn.Parameter)
        assert changed.steps.dtype is gt.int64 and changed.scratch.tolist() == [1, 1]
    net.float()
    assert net.table.weight.grad is not None and net.table.weight.grad.dtype is gt.float32
    net.zero_grad()
    net(gt.tensor([1, 2])).sum().backward()
    assert net.table.weight.grad.shape == (4, 3)
    same = net.table.weight
    assert net.float().to(gt.float32).table.weight is same
    with pytest.raises(TypeError, match="floating point"):
        net.to(gt.int32)


class Versioned(nn.Module):
    """Saves more than tensors, and renames what an older format called otherwise."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(gt.ones(2))
        self.count = 0
        self.register_load_state_dict_pre_hook(self._rename)

    @staticmethod
    def _rename(module, state_dict, prefix, *rest):
        if prefix + "w" in state_dict:
            state_dict[prefix + "weight"] = state_dict.pop(prefix + "w")

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def test_extra_state_and_load_hooks():
    net, other = nn.Sequential(Versioned()), nn.Sequential(Versioned())
    net[0].count = 7
    seen = []
    other.register_load_state_dict_post_hook(lambda m, keys: seen.append(keys))
    state = net.state_dict()
    assert list(state) == ["0.weight", "0._extra_state"]
    state["0.w"] = state.pop("0.weight") * 5
    other.load_state_dict(state)
    assert other[0].count == 7 and other[0].weight.tolist() == [5, 5] and seen == [([], [])]
    del state["0._extra_state"]
    with pytest.raises(RuntimeError, match='Missing key.*"0._extra_state"'):
        other.load_state_dict(state)
    plain = nn.Linear(1, 1)
    plain.register_state_dict_post_hook(lambda m, state, prefix, about: state.__delitem__(prefix + "bias"))
    assert list(nn.Sequential(plain).state_dict()) == ["0.weight"]


def broken_keys(library):
    nn = library.nn
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    state = net.state_dict()
    state["extra"] = state.pop("0.bias")
    state["2.weight"] = library.ones(4, 4)
    state["2.inner.deep"] = library.ones(1)
    with pytest.raises(RuntimeError) as error:
        net.load_state_dict(state)
    return str(error.value).replace("torch.Size", "gt.Size")


def test_load_errors_name_the_keys():
    message = broken_keys(gt)
    assert 'Missing key(s) in state_dict: "0.bias". ' in message
    assert 'Unexpected key(s) in state_dict: "extra", "2.inner.deep". ' in message
    assert "size mismatch for 2.weight: copying a param with shape gt.Size([4, 4])" in message


@needs_torch
def test_load_errors_against_torch():
    assert broken_keys(gt) == broken_keys(torch)


def test_loading_by_assignment_and_from_arrays():
    net = nn.Linear(2, 2)
    before = net.weight
    weight = np.arange(4, dtype="f4").reshape(2, 2)
    net.load_state_dict({"weight": weight, "bias": np.zeros(2, "f4")})
    assert net.weight is before and net.weight.tolist() == weight.tolist()
    fresh = gt.ones(2, 2, dtype=gt.float64)
    net.load_state_dict({"weight": fresh, "bias": gt.zeros(2)}, assign=True)
    assert isinstance(net.weight, nn.Parameter) and net.weight.dtype is gt.float64 and net.weight.requires_grad
    with pytest.raises(RuntimeError, match='"weight", expected a Tensor'):
        net.load_state_dict({"weight": "no", "bias": gt.zeros(2)})


def test_finding_and_replacing():
    net = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
    net.set_submodule("1.0", nn.Tanh())
    assert isinstance(net.get_submodule("1.0"), nn.Tanh)
    with pytest.raises(AttributeError):
        net.set_submodule("1.7", nn.Tanh(), strict=True)
    assert Tied().get_buffer("scale").tolist() == [1]
    assert net.get_parameter("0.weight") is net[0].weight


def test_rows_of_modules():
    rows = nn.ModuleList([nn.Linear(1, i) for i in range(1, 5)])
    rows.insert(1, nn.ReLU())
    assert [type(m).__name__ for m in rows] == ["Linear", "ReLU", "Linear", "Linear", "Linear"]
    del rows[0]
    assert rows.pop(-1).out_features == 4 and list(rows._modules) == ["0", "1", "2"]
    rows += [nn.Tanh()]
    rows[-1] = nn.Sigmoid()
    assert isinstance(rows[3], nn.Sigmoid) and len(rows[1:]) == 3 and len(rows + [nn.ReLU()]) == 5
    with pytest.raises(IndexError):
        rows[9]
    net = nn.Sequential(nn.Linear(1, 1)) + nn.Sequential(nn.ReLU())
    net.insert(0, nn.Tanh())
    assert [type(m).__name__ for m in net] == ["Tanh", "Linear", "ReLU"]
    table = nn.ModuleDict([("a", nn.ReLU())])
    table.update({"b": nn.Tanh()})
    assert isinstance(table.pop("a"), nn.ReLU) and list(table) == ["b"]
    params = nn.ParameterDict({"w": gt.ones(2)})
    assert isinstance(params["w"], nn.Parameter) and [n for n, _ in params.named_parameters()] == ["w"]


def test_what_is_no_module_is_refused():
    net = nn.Linear(1, 1)
    for wrong in (lambda: nn.ModuleList([1]), lambda: nn.Sequential(3), lambda: net.add_module("x", 3)):
        with pytest.raises(TypeError, match="int is not a Module subclass"):
            wrong()
    with pytest.raises(TypeError, match="buffer 'x'"):
        net.register_buffer("x", 3)
    with pytest.raises(ValueError, match="boolean"):
        net.train("x")
    with pytest.raises(RuntimeError, match="together"):
        gt.optim.Adam(net.parameters(), foreach=True, fused=True)
