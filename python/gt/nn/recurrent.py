"""Recurrent networks: RNN, LSTM and GRU, and one step of each."""

import math
import numbers
import warnings

from gt._gt import cat, empty, stack, tensor, where, zeros
from gt.amp import is_autocast_enabled
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.nn.utils.rnn import PackedSequence, _padded


def _rnn_step(x, h, recurrent, nonlinearity):
    """`x` is the input's share of the sum, `recurrent` gives that of the state."""
    total = x + recurrent(h)
    return total.tanh() if nonlinearity == "tanh" else total.relu()


def _lstm_step(x, state, recurrent):
    h, c = state
    i, f, g, o = (x + recurrent(h)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(x, h, recurrent):
    xr, xz, xn = x.chunk(3, -1)
    hr, hz, hn = recurrent(h).chunk(3, -1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return n + z * (h - n)


def _fill(module, hidden_size):
    bound = 1.0 / math.sqrt(hidden_size) if hidden_size else 0.0
    for p in module.parameters():
        init.uniform_(p, -bound, bound)


def _checked(name, value, kind):
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{name} should be of type {kind.__name__}, got: {type(value).__name__}")
    if kind is int and value <= 0:
        raise ValueError(f"{name} must be greater than zero")
    return value


class RNNBase(Module):
    """Layers of steps over a sequence, in one direction or both."""

    _gates = {"RNN_TANH": 1, "RNN_RELU": 1, "GRU": 3, "LSTM": 4}

    def __init__(
        self,
        mode,
        input_size,
        hidden_size,
        num_layers=1,
        bias=True,
        batch_first=False,
        dropout=0.0,
        bidirectional=False,
        proj_size=0,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if not isinstance(dropout, numbers.Number) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(f"dropout should be a number in range [0, 1], got {dropout}")
        if mode not in self._gates:
            raise ValueError(f"Unrecognized RNN mode: {mode}")
        self.mode, self.proj_size = mode, proj_size
        self.bias, self.batch_first = _checked("bias", bias, bool), _checked("batch_first", batch_first, bool)
        self.input_size = _checked("input_size", input_size, int)
        self.hidden_size = _checked("hidden_size", hidden_size, int)
        self.num_layers = _checked("num_layers", num_layers, int)
        self.dropout, self.bidirectional = float(dropout), bidirectional
        if dropout and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=3,
            )
        if not 0 <= proj_size < hidden_size:
            raise ValueError(f"proj_size has to be smaller than hidden_size and not negative, got {proj_size}")
        if proj_size and mode != "LSTM":
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        options = {"device": device, "dtype": dtype}
        rows, shown = self._gates[mode] * hidden_size, proj_size or hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else shown * self._directions
            shapes = {"weight_ih": (rows, width), "weight_hh": (rows, shown)}
            if bias:
                shapes.update(bias_ih=(rows,), bias_hh=(rows,))
            if proj_size:
                shapes.update(weight_hr=(proj_size, hidden_size))
            for suffix in self._suffixes(layer):
                for name, shape in shapes.items():
                    setattr(self, name + suffix, Parameter(empty(shape, **options)))
        self.reset_parameters()

    @property
    def _directions(self):
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer):
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def reset_parameters(self):
        _fill(self, self.hidden_size)

    def flatten_parameters(self):
        """Nothing to do: where parameters lie is the workers' business."""

    _names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")

    def _weights(self, suffix):
        return [getattr(self, name + suffix, None) for name in self._names]

    @property
    def all_weights(self):
        """The parameters of each layer and direction."""
        every = [self._weights(suffix) for layer in range(self.num_layers) for suffix in self._suffixes(layer)]
        return [[weight for weight in weights if weight is not None] for weights in every]

    def _advance(self, x, state, recurrent, project):
        return _rnn_step(x, state, recurrent, "relu" if self.mode == "RNN_RELU" else "tanh")

    def _shown(self, state):
        """What a step gives to the next layer."""
        return state

    def _kept(self, going, new, old):
        """The new state where a sequence goes on, else the old."""
        return where(going, new, old)

    def _run(self, x, state, suffix, backwards, going):
        """One layer in one direction, over (time, batch, width). `going` says which sequences go on at each step."""
        weight_ih, weight_hh, bias_ih, bias_hh, weight_hr = self._weights(suffix)
        # The input's share of all steps is one product.
        shares = F.linear(x, weight_ih, bias_ih).unbind(0)
        steps = list(zip(shares, going or [None] * len(shares)))
        out = []

        def recurrent(h):
            return F.linear(h, weight_hh, bias_hh)

        def project(h):
            return h if weight_hr is None else F.linear(h, weight_hr)

        for share, on in reversed(steps) if backwards else steps:
            new = self._advance(share, state, recurrent, project)
            state = new if on is None else self._kept(on, new, state)
            out.append(self._shown(state))
        return stack(out[::-1] if backwards else out), state

    def _first_states(self, x, hx):
        """The state of each layer and direction before the first step."""
        return list(self._start(x, hx, self.hidden_size).unbind(0))

    def _start(self, x, hx, width, said="Expected hidden size {}, got {}"):
        shape = (self.num_layers * self._directions, x.shape[1], width)
        if hx is None:
            return zeros(shape, dtype=x.dtype, device=x.device)
        if tuple(hx.shape) != shape:
            raise RuntimeError(said.format(shape, list(hx.shape)))
        return hx

    def _last_states(self, states):
        return stack(states)

    def _check(self, input):
        dtype = self.weight_ih_l0.dtype
        if input.dtype != dtype and not is_autocast_enabled():
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({dtype}). Convert input: "
                f"input.to({dtype}), or convert model: model.to({input.dtype})"
            )
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}"
            )

    def forward(self, input, hx=None):
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        if input.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.dim()}D tensor")
        self._check(input)
        alone = input.dim() == 2
        for h in () if hx is None else hx if isinstance(hx, tuple) else (hx,):
            if h.dim() != input.dim():
                raise RuntimeError(
                    f"For {'unbatched 2-D' if alone else 'batched 3-D'} input, hx should also be {input.dim()}-D but "
                    f"got {h.dim()}-D tensor"
                )
        x = input.unsqueeze(1) if alone else input.transpose(0, 1) if self.batch_first else input
        x, final = self._layers(x, self._each(hx, lambda h: h.unsqueeze(1)) if alone else hx)
        if alone:
            return x.squeeze(1), self._each(final, lambda h: h.squeeze(1))
        return x.transpose(0, 1) if self.batch_first else x, final

    def _packed(self, input, hx):
        """The sequences as long as the longest: what would be gaps keeps the state it had."""
        self._check(input.data)
        sizes, batch = input._sizes, input._sizes[0]
        x = _padded(input.data, sizes, len(sizes), range(batch))
        going = tensor([[[b < size] for b in range(batch)] for size in sizes]).unbind(0)
        there, back = input.sorted_indices, input.unsorted_indices
        if there is not None:
            hx = self._each(hx, lambda h: h.index_select(1, there))
        x, final = self._layers(x, hx, going)
        if back is not None:
            final = self._each(final, lambda h: h.index_select(1, back))
        rows = tensor([step * batch + b for step, size in enumerate(sizes) for b in range(size)])
        return input._with(x.flatten(0, 1).index_select(0, rows)), final

    def _layers(self, x, hx, going=None):
        states, last = self._first_states(x, hx), []
        for layer in range(self.num_layers):
            parts = []
            for direction, suffix in enumerate(self._suffixes(layer)):
                state = states[layer * self._directions + direction]
                out, state = self._run(x, state, suffix, direction == 1, going)
                parts.append(out)
                last.append(state)
            x = cat(parts, -1) if len(parts) > 1 else parts[0]
            if self.dropout and layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout, self.training)
        return x, self._last_states(last)

    def _each(self, hx, change):
        """A change made to all parts of a state."""
        return None if hx is None else tuple(map(change, hx)) if isinstance(hx, (tuple, list)) else change(hx)

    def extra_repr(self):
        said = [f"{self.input_size}, {self.hidden_size}"]
        plain = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0}
        plain["bidirectional"] = False
        said += [f"{name}={getattr(self, name)}" for name, value in plain.items() if getattr(self, name) != value]
        return ", ".join(said)


class RNN(RNNBase):
    """`h = tanh(W x + b + U h + c)`."""

    def __init__(self, input_size, hidden_size, num_layers=1, nonlinearity="tanh", *args, **options):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity {nonlinearity!r}. Select from 'tanh' or 'relu'.")
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, *args, **options)
        self.nonlinearity = nonlinearity


class GRU(RNNBase):
    """Gated recurrent units."""

    def __init__(self, *args, **options):
        super().__init__("GRU", *args, **options)

    def _advance(self, x, state, recurrent, project):
        return _gru_step(x, state, recurrent)


class LSTM(RNNBase):
    """Long short-term memory."""

    def __init__(self, *args, **options):
        super().__init__("LSTM", *args, **options)

    def _advance(self, x, state, recurrent, project):
        h, c = _lstm_step(x, state, recurrent)
        return project(h), c

    def _shown(self, state):
        return state[0]

    def _kept(self, going, new, old):
        return tuple(where(going, a, b) for a, b in zip(new, old))

    def _first_states(self, x, hx):
        hidden, cells = (None, None) if hx is None else hx
        hidden = self._start(x, hidden, self.proj_size or self.hidden_size, "Expected hidden[0] size {}, got {}")
        cells = self._start(x, cells, self.hidden_size, "Expected hidden[1] size {}, got {}")
        return list(zip(hidden.unbind(0), cells.unbind(0)))

    def _last_states(self, states):
        return stack([h for h, _ in states]), stack([c for _, c in states])


class RNNCellBase(Module):
    """One step."""

    def __init__(self, input_size, hidden_size, bias, num_chunks, device=None, dtype=None):
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows, options = num_chunks * hidden_size, {"device": device, "dtype": dtype}
        self.weight_ih = Parameter(empty(rows, input_size, **options))
        self.weight_hh = Parameter(empty(rows, hidden_size, **options))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(rows, **options)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        _fill(self, self.hidden_size)

    def _share(self, input):
        return F.linear(input, self.weight_ih, self.bias_ih)

    def _recurrent(self, h):
        return F.linear(h, self.weight_hh, self.bias_hh)

    def _given(self, input, hx, said="hidden"):
        """The state before the step: zeros if none is given."""
        for name, value in (("input", input), (said, hx)):
            if value is not None and value.dim() not in (1, 2):
                raise ValueError(f"{type(self).__name__}: Expected {name} to be 1D or 2D, got {value.dim()}D instead")
        if hx is None:
            return zeros(*input.shape[:-1], self.hidden_size, dtype=input.dtype, device=input.device)
        return hx

    def extra_repr(self):
        said = f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else f", bias={self.bias}")
        return said + (f", nonlinearity={self.nonlinearity}" if getattr(self, "nonlinearity", "tanh") != "tanh" else "")


class RNNCell(RNNCellBase):
    """One step of an RNN."""

    def __init__(self, input_size, hidden_size, bias=True, nonlinearity="tanh", device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input, hx=None):
        return _rnn_step(self._share(input), self._given(input, hx), self._recurrent, self.nonlinearity)


class GRUCell(RNNCellBase):
    """One step of a GRU."""

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input, hx=None):
        return _gru_step(self._share(input), self._given(input, hx), self._recurrent)


class LSTMCell(RNNCellBase):
    """One step of an LSTM."""

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input, hx=None):
        hx = (None, None) if hx is None else hx
        return _lstm_step(
            self._share(input), [self._given(input, h, f"hx[{i}]") for i, h in enumerate(hx)], self._recurrent
        )
