"""Recurrent, transformer and normalising layers, against PyTorch with the same weights and by their own rules."""

import numpy as np
import pytest
from helpers import check, compare, draw, needs_new_torch, needs_torch, torch

import gt
from gt import nn


def filled(module, library):
    """The module with numbers that both libraries can have."""
    rng = np.random.default_rng(3)
    with library.no_grad():
        for p in module.parameters():
            p.copy_(library.tensor(rng.uniform(-0.5, 0.5, tuple(p.shape)).astype(np.float32)))
    return module


def inputs(shape, library):
    x = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
    return library.tensor(x, requires_grad=True)


def trained(make, shapes, call, library):
    """Outputs, gradients of parameters and inputs, and buffers."""
    module = filled(make(library.nn), library)
    xs = [inputs(shape, library) for shape in shapes]
    out = call(module, library, *xs)
    outs = [out] if not isinstance(out, (tuple, list)) else [o for o in out if o is not None]
    loss = sum((o * (i + 1)).sum() + (o**2).sum() for i, o in enumerate(outs))
    loss.backward()
    return [outs, [p.grad for p in module.parameters()], [x.grad for x in xs], list(module.buffers())]


def lstm(module, T, x):
    out, (h, c) = module(x)
    return out, h, c


def plain(module, T, *xs):
    return module(*xs)


def causal(T, n):
    return T.ones(n, n).triu(1).bool()


CASES = {
    "batch norm": (lambda nn: nn.BatchNorm1d(4), [(5, 4)], plain),
    "batch norm of images": (lambda nn: nn.BatchNorm2d(3), [(2, 3, 4, 4)], plain),
    "batch norm, evaluated": (lambda nn: nn.BatchNorm1d(4).eval(), [(5, 4)], plain),
    "batch norm, mean of all": (lambda nn: nn.BatchNorm1d(4, momentum=None), [(5, 4)], plain),
    "norms without bias": (
        lambda nn: nn.Sequential(
            nn.BatchNorm1d(4, bias=False), nn.GroupNorm(2, 4, bias=False), nn.InstanceNorm1d(4, affine=True, bias=False)
        ),
        [(3, 4, 5)],
        plain,
    ),
    "group norm": (lambda nn: nn.GroupNorm(2, 4), [(3, 4, 5)], plain),
    "group norm of images": (lambda nn: nn.GroupNorm(3, 6), [(2, 6, 4, 3)], plain),
    "group norm without weights": (lambda nn: nn.GroupNorm(1, 4, affine=False), [(3, 4, 5)], plain),
    "instance norm": (lambda nn: nn.InstanceNorm1d(4, affine=True), [(3, 4, 5)], plain),
    "rnn": (lambda nn: nn.RNN(3, 4, nonlinearity="relu"), [(6, 2, 3)], plain),
    "lstm": (lambda nn: nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True), [(2, 6, 3)], lstm),
    "lstm without a batch": (lambda nn: nn.LSTM(3, 4, bias=False), [(6, 3)], lstm),
    "gru": (lambda nn: nn.GRU(3, 4, num_layers=2, bidirectional=True), [(6, 2, 3), (4, 2, 4)], plain),
    "lstm cell": (lambda nn: nn.LSTMCell(3, 4), [(2, 3)], plain),
    "gru cell": (lambda nn: nn.GRUCell(3, 4), [(2, 3), (2, 4)], plain),
    "attention": (lambda nn: nn.MultiheadAttention(8, 2, batch_first=True), [(2, 3, 8), (2, 5, 8), (2, 5, 8)], plain),
    "attention, causal": (
        lambda nn: nn.MultiheadAttention(8, 2),
        [(3, 2, 8)],
        lambda m, T, x: m(x, x, x, attn_mask=causal(T, 3), need_weights=False),
    ),
    "attention, padded": (
        lambda nn: nn.MultiheadAttention(8, 2, kdim=4, vdim=6, batch_first=True),
        [(2, 3, 8), (2, 2, 4), (2, 2, 6)],
        lambda m, T, q, k, v: m(q, k, v, key_padding_mask=T.tensor([[False, True], [False, False]])),
    ),
    "encoder": (
        lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2),
        [(2, 3, 8)],
        plain,
    ),
    "encoder, norm first": (
        lambda nn: nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation="gelu", norm_first=True),
        [(3, 2, 8)],
        lambda m, T, x: m(x, src_mask=causal(T, 3)),
    ),
    "transformer": (
        lambda nn: nn.Transformer(8, 2, 1, 2, 16, 0.0, batch_first=True),
        [(2, 4, 8), (2, 3, 8)],
        lambda m, T, src, tgt: m(src, tgt, tgt_mask=causal(T, 3)),
    ),
}


@needs_torch
@pytest.mark.parametrize("name", CASES)
def test_layers_are_pytorchs(name):
    if name == "norms without bias":
        needs_new_torch("the bias of norms")
    make, shapes, call = CASES[name]
    mine, right = trained(make, shapes, call, gt), trained(make, shapes, call, torch)
    assert list(make(gt.nn).state_dict()) == list(make(torch.nn).state_dict())
    check(mine, right, (2e-4, 2e-5))


@pytest.mark.parametrize("name", CASES)
def test_layers_have_gradients(name):
    outs, parameters, xs, _ = trained(*CASES[name], gt)
    assert all(bool(t.isfinite().all()) for t in [*outs, *parameters, *xs])
    # A bias of keys moves no score, and a norm undoes a bias before it.
    assert all(g is not None for g in parameters)


def test_batch_norm_by_hand():
    x = np.random.default_rng(0).normal(2, 3, (50, 3)).astype(np.float32)
    norm = nn.BatchNorm1d(3)
    out = norm(gt.tensor(x)).detach().numpy()
    np.testing.assert_allclose(out.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(out.std(0), 1, atol=1e-3)
    np.testing.assert_allclose(norm.running_mean.numpy(), 0.1 * x.mean(0), rtol=1e-4)
    np.testing.assert_allclose(norm.running_var.numpy(), 0.9 + 0.1 * x.var(0, ddof=1), rtol=1e-4)
    assert norm.num_batches_tracked.item() == 1
    with pytest.raises(ValueError, match="more than 1 value"):
        norm(gt.ones(1, 3))


@needs_torch
def test_group_norm_has_second_derivatives():
    seen = []
    for library in (gt, torch):
        made = [library.tensor(draw(shape, "float64"), requires_grad=True) for shape in [(2, 6, 3, 4), (6,), (6,)]]
        out = library.nn.functional.group_norm(made[0], 3, *made[1:])
        grads = library.autograd.grad((out**3).sum(), made, create_graph=True)
        seen.append([out, *grads, *library.autograd.grad(sum((g * g).sum() for g in grads), made)])
    check(*seen)


def test_group_norm_of_no_samples():
    assert nn.GroupNorm(2, 4)(gt.ones(0, 4, 3, 3)).shape == (0, 4, 3, 3)


def test_lstm_by_hand():
    layer = nn.LSTM(2, 3)
    x = gt.randn(4, 1, 2)
    cell = nn.LSTMCell(2, 3)
    cell.load_state_dict({name.removesuffix("_l0"): p for name, p in layer.state_dict().items()})
    state = None
    for step in x:
        state = cell(step, state)
    out, (h, c) = layer(x)
    check(out[-1], state[0].detach().numpy(), dtype=False)
    check(c[0], state[1].detach().numpy(), dtype=False)


@needs_torch
def test_attention_with_weights_of_the_callers():
    def attend(T, q, k, w, o, b, separate):
        part = w.chunk(3)
        options = {"need_weights": not separate, "attn_mask": causal(T, 3)}
        if separate:
            names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
            options.update(use_separate_proj_weight=True, **dict(zip(names, part)))
        out, weights = T.nn.functional.multi_head_attention_forward(
            q, k, k, 8, 2, None if separate else w, b, None, None, separate, 0.0, o, None, **options
        )
        return [out] if weights is None else [out, weights]

    shapes = [(3, 2, 8), (3, 2, 8), (24, 8), (8, 8), (24,)]
    for separate in (False, True):
        compare(lambda T, *given, s=separate: attend(T, *given, s), [draw(shape, "float64") for shape in shapes])


def test_replaced_layers_keep_their_place():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    model[0] = nn.Linear(2, 2)
    model[2].weight = nn.Parameter(gt.ones(1, 2))
    assert list(model._modules) == ["0", "1", "2"]
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [type(m).__name__ for m in model] == ["Linear", "ReLU", "Linear"]


def test_conversions_keep_parameters():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    optimizer = gt.optim.SGD(model.parameters(), lr=1.0)
    before = list(model.parameters())
    model(gt.ones(1, 2)).sum().backward()
    model.double()
    assert [p is q for p, q in zip(model.parameters(), before)] == [True] * 3
    assert model[1].weight is model[0].weight and before[0].dtype == before[0].grad.dtype == gt.float64
    weight = before[0].detach().clone()
    optimizer.step()
    check(before[0], (weight - before[0].grad).numpy())
    assert model.to("cuda")[0].weight is before[0] and before[0].device.type == "cuda"


def test_storage_is_freed_by_conversions():
    layer = nn.Linear(1024, 1024, bias=False)
    gt.synchronize()
    full = sum(w["bytes_in_use"] for w in gt.workers())
    for _ in range(3):
        layer.half()
        layer.float()
    layer.half()
    gt.synchronize()
    assert sum(w["bytes_in_use"] for w in gt.workers()) < full


def test_activations_write_in_place():
    for activation in (nn.LeakyReLU(0.1, True), nn.ELU(inplace=True), nn.Hardtanh(inplace=True), nn.ReLU6(True)):
        x = gt.tensor([-2.0, 0.5, 8.0])
        right = type(activation)()(x.clone())
        if isinstance(activation, nn.LeakyReLU):
            right = nn.LeakyReLU(0.1)(x.clone())
        assert activation(x) is x and x.tolist() == right.tolist()
    y = gt.tensor([-2.0, 0.5], requires_grad=True)
    nn.functional.leaky_relu(y * 1, 0.1, True).sum().backward()
    check(y.grad, np.array([0.1, 1.0], dtype=np.float32))


def test_embeddings_are_shortened_and_scaled():
    table = nn.Embedding(4, 2, max_norm=1.0, _weight=gt.tensor([[3.0, 4.0], [0.1, 0.1], [6.0, 8.0], [0.0, 2.0]]))
    out = table(gt.tensor([0, 1]))
    check(out, np.array([[0.6, 0.8], [0.1, 0.1]], dtype=np.float32), (1e-5, 1e-5))
    assert table.weight[2].tolist() == [6.0, 8.0]
    scaled = nn.Embedding(3, 1, scale_grad_by_freq=True)
    scaled(gt.tensor([0, 0, 1])).sum().backward()
    assert scaled.weight.grad.tolist() == [[1.0], [1.0], [0.0]]
