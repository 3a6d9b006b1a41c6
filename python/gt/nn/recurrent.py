"""Recurrent networks: RNN, LSTM and GRU, and one step of each."""

import math

from gt._gt import cat, empty, stack, zeros
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter


def _rnn_step(x, h, recurrent, nonlinearity):
    """`x` is the input's share of the sum, `recurrent` gives that of the state."""
    total = x + recurrent(h)
    return total.tanh() if nonlinearity == "tanh" else total.relu()


def _lstm_step(x, state, recurrent, projected=None):
    h, c = state
    i, f, g, o = (x + recurrent(h)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return h if projected is None else projected(h), c


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


class _Recurrent(Module):
    """Layers of steps over a sequence, in one direction or both."""

    _gates = 1
    mode = "RNN"

    def __init__(
        self,
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
        if proj_size and self.mode != "LSTM":
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        if not 0 <= proj_size < max(1, hidden_size):
            raise ValueError(f"proj_size has to be smaller than hidden_size and not negative, got {proj_size}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout should be a number in range [0, 1], got {dropout}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        shown = proj_size or hidden_size
        options = {"device": device, "dtype": dtype}
        for layer in range(num_layers):
            width = input_size if layer == 0 else shown * self._directions
            for suffix in self._suffixes(layer):
                rows = self._gates * hidden_size
                shapes = {"weight_ih": (rows, width), "weight_hh": (rows, shown)}
                if bias:
                    shapes.update(bias_ih=(rows,), bias_hh=(rows,))
                if proj_size:
                    shapes.update(weight_hr=(proj_size, hidden_size))
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

    def _weights(self, suffix):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [getattr(self, name + suffix, None) for name in names]

    def _advance(self, x, state, recurrent, suffix):
        return _rnn_step(x, state, recurrent, self.nonlinearity)

    def _shown(self, state):
        """What a step gives to the next layer."""
        return state

    def _run(self, x, state, suffix, backwards):
        """One layer in one direction, over (time, batch, width)."""
        weight_ih, weight_hh, bias_ih, bias_hh = self._weights(suffix)
        # The input's share of all steps is one product.
        shares = F.linear(x, weight_ih, bias_ih).unbind(0)
        out = []
        for share in reversed(shares) if backwards else shares:
            state = self._advance(share, state, lambda h: F.linear(h, weight_hh, bias_hh), suffix)
            out.append(self._shown(state))
        return stack(out[::-1] if backwards else out), state

    def _first_states(self, x, hx, width=None):
        """The state of each layer and direction before the first step."""
        wanted = (self.num_layers * self._directions, x.shape[1], width or self.proj_size or self.hidden_size)
        if hx is None:
            hx = zeros(wanted, dtype=x.dtype, device=x.device)
        elif tuple(hx.shape) != wanted:
            raise RuntimeError(f"Expected hidden size {wanted}, got {list(hx.shape)}")
        return list(hx.unbind(0))

    def _last_states(self, states):
        return stack(states)

    def forward(self, input, hx=None):
        if input.dim() not in (2, 3):
            raise ValueError(f"{self.mode}: expected input to be 2D or 3D, got {input.dim()}D tensor")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}"
            )
        alone = input.dim() == 2
        x = input.unsqueeze(1) if alone else input.transpose(0, 1) if self.batch_first else input
        states, last = self._first_states(x, self._batched(hx) if alone else hx), []
        for layer in range(self.num_layers):
            parts = []
            for direction, suffix in enumerate(self._suffixes(layer)):
                out, state = self._run(x, states[layer * self._directions + direction], suffix, direction == 1)
                parts.append(out)
                last.append(state)
            x = cat(parts, -1) if len(parts) > 1 else parts[0]
            if self.dropout and layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout, self.training)
        final = self._last_states(last)
        if alone:
            return x.squeeze(1), self._unbatched(final)
        return x.transpose(0, 1) if self.batch_first else x, final

    def _batched(self, hx):
        return None if hx is None else hx.unsqueeze(1)

    def _unbatched(self, hx):
        return hx.squeeze(1)

    def extra_repr(self):
        said = [f"{self.input_size}, {self.hidden_size}"]
        plain = {
            "proj_size": 0,
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
        }
        said += [f"{name}={getattr(self, name)}" for name, value in plain.items() if getattr(self, name) != value]
        return ", ".join(said)


class RNN(_Recurrent):
    """`h = tanh(W x + b + U h + c)`."""

    def __init__(self, input_size, hidden_size, num_layers=1, nonlinearity="tanh", *args, **options):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity {nonlinearity!r}. Select from 'tanh' or 'relu'.")
        super().__init__(input_size, hidden_size, num_layers, *args, **options)
        self.nonlinearity = nonlinearity


class GRU(_Recurrent):
    """Gated recurrent units."""

    _gates = 3
    mode = "GRU"

    def _advance(self, x, state, recurrent, suffix):
        return _gru_step(x, state, recurrent)


class LSTM(_Recurrent):
    """Long short-term memory."""

    _gates = 4
    mode = "LSTM"

    def _advance(self, x, state, recurrent, suffix):
        weight_hr = getattr(self, f"weight_hr{suffix}", None)
        return _lstm_step(x, state, recurrent, None if weight_hr is None else lambda h: F.linear(h, weight_hr))

    def _shown(self, state):
        return state[0]

    def _first_states(self, x, hx):
        hidden, cells = (None, None) if hx is None else hx
        return list(zip(super()._first_states(x, hidden), super()._first_states(x, cells, self.hidden_size)))

    def _last_states(self, states):
        return stack([h for h, _ in states]), stack([c for _, c in states])

    def _batched(self, hx):
        return None if hx is None else tuple(h.unsqueeze(1) for h in hx)

    def _unbatched(self, hx):
        return tuple(h.squeeze(1) for h in hx)


class _Cell(Module):
    """One step."""

    _gates = 1

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows, options = self._gates * hidden_size, {"device": device, "dtype": dtype}
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

    def _nothing(self, input):
        return zeros(*input.shape[:-1], self.hidden_size, dtype=input.dtype, device=input.device)

    def extra_repr(self):
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_Cell):
    """One step of an RNN."""

    def __init__(self, input_size, hidden_size, bias=True, nonlinearity="tanh", **options):
        super().__init__(input_size, hidden_size, bias, **options)
        self.nonlinearity = nonlinearity

    def extra_repr(self):
        said = super().extra_repr()
        return said if self.nonlinearity == "tanh" else f"{said}, nonlinearity={self.nonlinearity}"

    def forward(self, input, hx=None):
        hx = self._nothing(input) if hx is None else hx
        return _rnn_step(self._share(input), hx, self._recurrent, self.nonlinearity)


class GRUCell(_Cell):
    """One step of a GRU."""

    _gates = 3

    def forward(self, input, hx=None):
        hx = self._nothing(input) if hx is None else hx
        return _gru_step(self._share(input), hx, self._recurrent)


class LSTMCell(_Cell):
    """One step of an LSTM."""

    _gates = 4

    def forward(self, input, hx=None):
        hx = (self._nothing(input), self._nothing(input)) if hx is None else hx
        return _lstm_step(self._share(input), hx, self._recurrent)
