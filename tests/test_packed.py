"""Recurrent networks over packed sequences, against PyTorch and against each sequence alone."""

import numpy as np
import pytest
from helpers import check, needs_torch, torch

import gt

LENGTHS = [3, 5, 1, 4]
KINDS = ["RNN", "GRU", "LSTM"]


def sequences(T, width=3):
    rng = np.random.default_rng(0)
    return [T.from_numpy(rng.standard_normal((n, width))) for n in LENGTHS]


def network(T, kind, **options):
    net = getattr(T.nn, kind)(3, 4, num_layers=2, bidirectional=True, **options).double()
    rng = np.random.default_rng(1)
    net.load_state_dict({k: T.from_numpy(rng.standard_normal(tuple(v.shape)) / 2) for k, v in net.state_dict().items()})
    return net


def flat(hx):
    return list(hx) if isinstance(hx, tuple) else [hx]


@needs_torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sorted_already", [True, False])
def test_packed_against_torch(kind, sorted_already):
    seen = []
    for T in (gt, torch):
        rnn = T.nn.utils.rnn
        rows = sequences(T)
        if sorted_already:
            rows.sort(key=lambda s: -len(s))
        padded = rnn.pad_sequence(rows, batch_first=True).requires_grad_()
        lengths = T.tensor([len(s) for s in rows])
        packed = rnn.pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=sorted_already)
        options = {"proj_size": 2} if kind == "LSTM" else {}
        net = network(T, kind, **options)
        width = 2 if kind == "LSTM" else 4
        first = T.from_numpy(np.random.default_rng(2).standard_normal((4, 4, width)))
        first = (first, T.from_numpy(np.random.default_rng(3).standard_normal((4, 4, 4)))) if options else first
        out, last = net(packed, first)
        back, counts = rnn.pad_packed_sequence(out, batch_first=True, padding_value=0.5, total_length=6)
        (back.sin().sum() + sum(h.cos().sum() for h in flat(last))).backward()
        grads = [padded.grad, *[p.grad for p in net.parameters()]]
        parts = [packed.data, packed.batch_sizes, out.data, back, counts, *flat(last), *grads]
        if not sorted_already:
            parts += [packed.sorted_indices, packed.unsorted_indices]
        seen.append([*parts, list(net.state_dict()), repr(net)])
    check(*seen)


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_batch_is_as_its_sequences_alone(kind):
    rnn, net = gt.nn.utils.rnn, network(gt, kind)
    rows = sequences(gt)
    for p in net.parameters():
        p.requires_grad_(False)
    packed = rnn.pack_sequence(rows, enforce_sorted=False)
    check(rnn.unpack_sequence(packed), [r.numpy() for r in rows])
    out, last = net(packed)
    for i, (row, mine) in enumerate(zip(rows, rnn.unpack_sequence(out))):
        alone, state = net(row)
        check(mine, alone.numpy(), (1e-10, 1e-10))
        check([h[:, i] for h in flat(last)], [h.numpy() for h in flat(state)], (1e-10, 1e-10))
    assert packed.to(gt.float32).data.dtype is gt.float32 and packed.to(gt.float64) is packed
    assert out.unsorted_indices.tolist() == packed.unsorted_indices.tolist()


def test_what_packing_refuses():
    rnn, x = gt.nn.utils.rnn, gt.zeros(2, 3, 4)
    with pytest.raises(RuntimeError, match="sorted in decreasing order"):
        rnn.pack_padded_sequence(x, [1, 2, 2])
    with pytest.raises(RuntimeError, match="greater than 0"):
        rnn.pack_padded_sequence(x, [2, 1, 0])
    with pytest.raises(RuntimeError, match="batch_size"):
        rnn.pack_padded_sequence(x, [2, 1])
    with pytest.raises(RuntimeError, match="at most"):
        rnn.pack_padded_sequence(x, [3, 1, 1])
    with pytest.raises(ValueError, match="total_length"):
        rnn.pad_packed_sequence(rnn.pack_padded_sequence(x, [2, 1, 1]), total_length=1)


def test_what_recurrent_networks_refuse():
    nn = gt.nn
    for wrong, error in (
        ({"hidden_size": 0}, ValueError),
        ({"num_layers": -1}, ValueError),
        ({"bias": 1}, TypeError),
        ({"batch_first": "no"}, TypeError),
        ({"proj_size": 4}, ValueError),
    ):
        with pytest.raises(error, match=next(iter(wrong))):
            nn.LSTM(**{"input_size": 3, "hidden_size": 4, **wrong})
    with pytest.raises(ValueError, match="only supported for LSTM"):
        nn.GRU(3, 4, proj_size=2)
    with pytest.raises(ValueError, match="Convert input"):
        nn.RNN(3, 4)(gt.zeros(5, 2, 3, dtype=gt.float64))
    with pytest.raises(RuntimeError, match="hx should also be 3-D"):
        nn.GRU(3, 4)(gt.zeros(5, 2, 3), gt.zeros(1, 4))
    with pytest.raises(ValueError, match="Expected hidden to be 1D or 2D"):
        nn.GRUCell(3, 4)(gt.zeros(2, 3), gt.zeros(1, 2, 2, 4))
    assert isinstance(nn.LSTM(3, 4), nn.RNNBase) and isinstance(nn.LSTMCell(3, 4), nn.RNNCellBase)
    assert [len(w) for w in nn.LSTM(3, 4, bidirectional=True, proj_size=2).all_weights] == [5, 5]
