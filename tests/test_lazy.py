"""Layers that learn the size of their input from the first one they see."""

import copy

import pytest
from helpers import check, needs_new_torch, needs_torch, torch

import gt
from gt import nn

MAKE = {
    "linear": (lambda nn: nn.LazyLinear(4), (2, 3)),
    "linear without bias": (lambda nn: nn.LazyLinear(4, False), (2, 5, 3)),
    "conv1d": (lambda nn: nn.LazyConv1d(4, 3, 2), (2, 6, 9)),
    "conv2d": (lambda nn: nn.LazyConv2d(4, 3, 1, 1, 1, 2, False), (2, 6, 5, 5)),
    "conv2d of one": (lambda nn: nn.LazyConv2d(4, 3, padding="same"), (6, 5, 5)),
    "conv3d": (lambda nn: nn.LazyConv3d(4, (1, 2, 2)), (2, 3, 3, 4, 4)),
    "transposed 1": (lambda nn: nn.LazyConvTranspose1d(4, 3, 2), (2, 6, 9)),
    "transposed 2": (lambda nn: nn.LazyConvTranspose2d(4, 3, 2, 1, 1, 2, True, 2), (2, 6, 5, 5)),
    "transposed 3": (lambda nn: nn.LazyConvTranspose3d(4, 2), (2, 3, 3, 4, 4)),
    "batch norm 1": (lambda nn: nn.LazyBatchNorm1d(), (4, 3)),
    "batch norm 2": (lambda nn: nn.LazyBatchNorm2d(1e-3, None), (4, 3, 5, 5)),
    "batch norm without bias": (lambda nn: nn.LazyBatchNorm1d(bias=False), (4, 3, 5)),
    "batch norm 3": (lambda nn: nn.LazyBatchNorm3d(affine=False), (4, 3, 2, 2, 2)),
    "instance norm 1": (lambda nn: nn.LazyInstanceNorm1d(), (4, 3, 5)),
    "instance norm 2": (lambda nn: nn.LazyInstanceNorm2d(track_running_stats=False), (4, 3, 5, 5)),
    "instance norm 3": (lambda nn: nn.LazyInstanceNorm3d(), (4, 3, 2, 2, 2)),
}


def life(library, kind):
    """What a layer says of itself and gives, before and after its first input."""
    make, shape = MAKE[kind]
    layer = make(library.nn)
    said = [repr(layer), layer.has_uninitialized_params(), list(layer.state_dict()), type(layer).__name__]
    out = layer(library.ones(*shape))
    said += [repr(layer), type(layer).__name__, tuple(out.shape), layer.training]
    return said + [(name, tuple(value.shape)) for name, value in layer.state_dict().items()]


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MAKE)
def test_the_life_of_a_layer_is_pytorchs(kind):
    if "norm" in kind:
        needs_new_torch("what norms say of their bias")
    assert life(gt, kind) == life(torch, kind)


def test_a_network_of_lazy_layers_learns():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    # The optimizer holds parameters that have no shape yet.
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    x = gt.randn(8, 1, 6, 6)
    y = gt.arange(8) % 2
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert [type(m).__name__ for m in model] == ["Conv2d", "BatchNorm2d", "ReLU", "Flatten", "Linear"]
    assert losses[-1] < 0.5 * losses[0]


def test_state_gives_shapes():
    plain = nn.Linear(3, 2)
    lazy = nn.LazyLinear(2)
    lazy.load_state_dict(plain.state_dict())
    assert not lazy.has_uninitialized_params()
    x = gt.randn(4, 3)
    check(lazy(x), plain(x))
    assert type(lazy) is nn.Linear and lazy.in_features == 3
    other = nn.LazyLinear(2)
    other.load_state_dict(nn.LazyLinear(2).state_dict())
    assert other.has_uninitialized_params()
    with pytest.raises(RuntimeError, match="uninitialized parameter"):
        plain.load_state_dict(other.state_dict())


def test_types_and_copies():
    layer = nn.LazyLinear(2).double()
    again = copy.deepcopy(layer)
    for made in (layer, again):
        assert made(gt.ones(1, 3, dtype=gt.float64)).dtype is gt.float64
    assert layer.weight is not again.weight and type(layer.weight) is nn.Parameter


def test_parameters_without_a_shape():
    weight = nn.UninitializedParameter(dtype=gt.float64)
    assert repr(weight) == "<UninitializedParameter>" and weight.requires_grad
    with pytest.raises(RuntimeError, match="uninitialized"):
        print(weight.shape)
    weight.materialize((2, 3))
    assert type(weight) is nn.Parameter and weight.shape == (2, 3) and weight.dtype is gt.float64
    buffer = nn.UninitializedBuffer()
    buffer.materialize((2,))
    assert buffer.shape == (2,) and not buffer.requires_grad
    with pytest.raises(RuntimeError, match="3D .unbatched. or 4D"):
        nn.LazyConv2d(4, 3)(gt.ones(2, 2))
    with pytest.raises(ValueError, match="divisible"):
        nn.LazyConv2d(4, 3, groups=2)(gt.ones(1, 3, 4, 4))
