"""Sums, means and maxima of the rows of a table, for bags of indices."""

from gt._gt import arange, cat, empty, int64, ones, where, zeros
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter

__all__ = ["embedding_bag"]


def _bag_of_each(offsets, count):
    """The number of the bag that each index lies in."""
    starts = zeros(count + 1, dtype=int64).index_add(0, offsets.long(), ones(offsets.numel(), dtype=int64))
    return starts.narrow(0, 0, count).cumsum(0) - 1


def _largest_in_bags(rows, bag, bags, kept):
    """The largest of each column in each bag, the first of equal ones; zero for a bag with nothing kept."""
    count = rows.shape[0]
    if not count:
        return rows.new_zeros(bags, rows.shape[1])
    best = rows.detach().masked_fill(~kept.unsqueeze(1), float("-inf"))
    place, step = arange(count).unsqueeze(1).expand(rows.shape), 1
    while step < count:
        # Each row looks at the best of the `step` rows before it, as far as they are in its bag.
        before, where_before = (cat([t[:step], t[:-step]]) for t in (best, place))
        same = (cat([bag[:step] - 1, bag[:-step]]) == bag).unsqueeze(1)
        better = same & (before >= best)
        best, place = where(better, before, best), where(better, where_before, place)
        step *= 2
    sizes, left = (zeros(bags, dtype=int64).index_add(0, bag, t) for t in (ones(count, dtype=int64), kept.long()))
    last = place.index_select(0, (sizes.cumsum(0) - 1).clamp(min=0))
    return where(left.unsqueeze(1) > 0, rows.gather(0, last), 0.0)


def _check(input, weight, offsets, mode, scale_grad_by_freq, sparse, per_sample_weights):
    if weight.dim() != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.dim()}")
    if per_sample_weights is not None and tuple(per_sample_weights.shape) != tuple(input.shape):
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({per_sample_weights.shape}) is not None, then it must have the "
            f"same shape as the input ({input.shape})"
        )
    if input.dim() not in (1, 2):
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}")
    if input.dim() == 2 and offsets is not None:
        raise ValueError("if input is 2D, then offsets has to be None, as each row is a bag")
    if input.dim() == 1 and (offsets is None or offsets.dim() != 1):
        raise ValueError("offsets has to be a 1D Tensor" + (" but got None" if offsets is None else ""))
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if mode == "max" and sparse:
        raise ValueError("max mode does not support sparse weights")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            f"embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' "
            f"(got mode='{mode}')."
        )


def embedding_bag(
    input,
    weight,
    offsets=None,
    max_norm=None,
    norm_type=2,
    scale_grad_by_freq=False,
    mode="mean",
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """The sum, mean or maximum of rows of `weight`, for each bag of indices: the rows of `input`, or what stands from
    one of the offsets to the next."""
    _check(input, weight, offsets, mode, scale_grad_by_freq, sparse, per_sample_weights)
    rows = F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    kept = ones(input.shape, dtype="bool") if padding_idx is None else input != padding_idx % weight.shape[0]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is not None and mode != "max":
        rows = where(kept.unsqueeze(-1), rows, 0.0)
    if input.dim() == 2:
        if mode == "max":
            bare = rows.masked_fill(~kept.unsqueeze(-1), float("-inf"))
            return where(kept.any(1, keepdim=True), bare.max(1)[0], 0.0) if input.shape[1] else rows.sum(1)
        total, count = rows.sum(1), kept.sum(1)
    else:
        bag = _bag_of_each(offsets, input.numel())
        # What follows the last of the offsets, where that only ends the last bag, lies in a bag that is left out.
        bags = offsets.numel()
        wanted = bags - include_last_offset
        if mode == "max":
            return _largest_in_bags(rows, bag, bags, kept)[:wanted]
        total = rows.new_zeros(bags, weight.shape[1]).index_add(0, bag, rows)[:wanted]
        count = zeros(bags, dtype=int64).index_add(0, bag, kept.long())[:wanted]
    return total if mode == "sum" else total / count.clamp(min=1).unsqueeze(1).to(total.dtype)


class EmbeddingBag(Module):
    """Sums, means or maxima of the rows of a table, for bags of indices."""

    def __init__(
        self,
        num_embeddings,
        embedding_dim,
        max_norm=None,
        norm_type=2.0,
        scale_grad_by_freq=False,
        mode="mean",
        sparse=False,
        _weight=None,
        include_last_offset=False,
        padding_idx=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"EmbeddingBag: padding_idx must be within {num_embeddings} embeddings, got {padding_idx}")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.mode, self.sparse, self.include_last_offset = mode, sparse, include_last_offset
        if _weight is not None:
            self.weight = Parameter(_weight)
            return
        self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self):
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.data[self.padding_idx] = 0

    def forward(self, input, offsets=None, per_sample_weights=None):
        return embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self):
        said = [f"{self.num_embeddings}, {self.embedding_dim}"]
        if self.max_norm is not None:
            said.append(f"max_norm={self.max_norm}")
        if self.norm_type != 2:
            said.append(f"norm_type={self.norm_type}")
        if self.scale_grad_by_freq:
            said.append("scale_grad_by_freq=True")
        said.append(f"mode={self.mode!r}")
        if self.padding_idx is not None:
            said.append(f"padding_idx={self.padding_idx}")
        return ", ".join(said)

    @classmethod
    def from_pretrained(
        cls,
        embeddings,
        freeze=True,
        max_norm=None,
        norm_type=2.0,
        scale_grad_by_freq=False,
        mode="mean",
        sparse=False,
        include_last_offset=False,
        padding_idx=None,
    ):
        """A table with the given rows."""
        options = mode, sparse, embeddings, include_last_offset, padding_idx
        made = cls(*embeddings.shape, max_norm, norm_type, scale_grad_by_freq, *options)
        made.weight.requires_grad = not freeze
        return made
