"""Sequences of different lengths in one tensor, and out of it again."""

from itertools import accumulate
from typing import NamedTuple

from gt import _gt
from gt._gt import Tensor

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """Sequences from the longest to the shortest, step by step and without the gaps: `batch_sizes` says how many go on
    at each step. Recurrent networks take it and give it back."""

    def __new__(cls, data, batch_sizes=None, sorted_indices=None, unsorted_indices=None, _sizes=None):
        if batch_sizes is None:
            data, batch_sizes = data
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        made = super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)
        # The sizes as numbers, so that nobody waits for them twice.
        made._sizes = batch_sizes.tolist() if _sizes is None else _sizes
        return made

    def _with(self, data):
        return type(self)(data, *self[1:], _sizes=self._sizes)

    def to(self, *args, **kwargs):
        """The same with its data in another type or on another device."""
        data = self.data.to(*args, **kwargs)
        return self if data is self.data else self._with(data)

    def cpu(self):
        return self.to("cpu")

    def cuda(self, device=None, non_blocking=False):
        return self._with(self.data.cuda(device, non_blocking))

    def double(self):
        return self.to(_gt.float64)

    def float(self):
        return self.to(_gt.float32)

    def half(self):
        return self.to(_gt.float16)

    def long(self):
        return self.to(_gt.int64)

    def int(self):
        return self.to(_gt.int32)

    @property
    def is_cuda(self):
        return self.data.is_cuda

    def pin_memory(self):
        return self._with(self.data.pin_memory())

    def is_pinned(self):
        return self.data.is_pinned()


def invert_permutation(permutation):
    """Where each number stands in a permutation."""
    return None if permutation is None else permutation.argsort()


def pack_padded_sequence(input, lengths, batch_first=False, enforce_sorted=True):
    """Packs sequences that `pad_sequence` made one tensor of. They come from the longest to the shortest, or in any
    order if `enforce_sorted` is false."""
    lengths = [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]
    if input.dim() < 2:
        raise RuntimeError(f"pack_padded_sequence: expected input of 2 dimensions or more, got {input.dim()}")
    batch, longest = tuple(input.shape[:2]) if batch_first else (input.shape[1], input.shape[0])
    if not len(lengths) == batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} (batch_size={batch})"
        )
    if min(lengths, default=0) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    if max(lengths) > longest:
        raise RuntimeError(f"Expected lengths to be at most that of the padded input, {longest}, got {max(lengths)}")
    order = list(range(batch))
    if not enforce_sorted:
        order.sort(key=lambda b: -lengths[b])
    elif any(a < b for a, b in zip(lengths, lengths[1:])):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you "
            "do not need ONNX exportability."
        )
    sizes = [sum(n > step for n in lengths) for step in range(max(lengths))]
    # Where a step of a sequence stands among the rows of the input.
    across, along = (longest, 1) if batch_first else (1, batch)
    rows = [b * across + step * along for step, size in enumerate(sizes) for b in order[:size]]
    data = input.flatten(0, 1).index_select(0, _gt.tensor(rows))
    return PackedSequence(data, _gt.tensor(sizes), None if enforce_sorted else _gt.tensor(order), _sizes=sizes)


def pad_packed_sequence(sequence, batch_first=False, padding_value=0.0, total_length=None):
    """The sequences as one tensor, in the order they had before, and their lengths."""
    sizes = sequence._sizes
    steps = len(sizes) if total_length is None else total_length
    if steps < len(sizes):
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {len(sizes)}"
        )
    batch = sizes[0]
    places = sequence.unsorted_indices
    order = list(range(batch)) if places is None else places.tolist()
    padded = _padded(sequence.data, sizes, steps, order, batch_first, padding_value)
    return padded, _gt.tensor([sum(size > b for size in sizes) for b in order])


def _padded(data, sizes, steps, order, batch_first=False, padding_value=0.0):
    """Packed rows with the gaps filled, the sequences in an order."""
    starts, gap = [0, *accumulate(sizes)], sum(sizes)

    def row(step, b):
        return starts[step] + b if step < len(sizes) and b < sizes[step] else gap

    if batch_first:
        rows = [row(step, b) for b in order for step in range(steps)]
    else:
        rows = [row(step, b) for step in range(steps) for b in order]
    filled = _gt.cat([data, _gt.full((1, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)])
    sizes = (len(order), steps) if batch_first else (steps, len(order))
    return filled.index_select(0, _gt.tensor(rows)).unflatten(0, sizes)


def pack_sequence(sequences, enforce_sorted=True):
    """Packs sequences (length, ...)."""
    return pack_padded_sequence(pad_sequence(sequences), [len(s) for s in sequences], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences):
    """The sequences that were packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


def pad_sequence(sequences, batch_first=False, padding_value=0.0, padding_side="right"):
    """Sequences (length, ...) as one tensor, as long as the longest; the others are filled up with `padding_value`."""
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"pad_sequence: expected padding_side 'left' or 'right', got {padding_side!r}")
    if isinstance(sequences, Tensor):
        sequences = sequences.unbind(0)
    elif not hasattr(sequences, "__iter__"):
        raise RuntimeError(f"pad_sequence: expected an iterable of tensors or a tensor, got {type(sequences).__name__}")
    sequences = list(sequences)
    if not sequences:
        raise RuntimeError("pad_sequence: received an empty list of sequences")
    rest, longest = sequences[0].shape[1:], max(len(s) for s in sequences)
    filled = []
    for s in sequences:
        if s.shape[1:] != rest:
            raise RuntimeError(
                f"pad_sequence: expected sequences that differ in length only, got shapes {list(sequences[0].shape)} "
                f"and {list(s.shape)}"
            )
        more = longest - len(s)
        at_ends = [0, 0] * len(rest) + ([more, 0] if padding_side == "left" else [0, more])
        filled.append(s.pad(at_ends, "constant", padding_value) if more else s)
    return _gt.stack(filled, 0 if batch_first else 1)


def unpad_sequence(padded_sequences, lengths, batch_first=False):
    """The sequences that `pad_sequence` made one tensor of, by their lengths."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    lengths = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    return [row[: int(length)] for row, length in zip(rows.unbind(0), lengths)]
