"""Sequences of different lengths in one tensor, and out of it again."""

from gt import _gt
from gt._gt import Tensor

__all__ = ["pad_sequence", "unpad_sequence"]


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
