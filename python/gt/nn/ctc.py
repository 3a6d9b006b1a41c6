"""The loss of sequences whose alignment is not known: a sum over all alignments, step by step in logarithms."""

from gt._gt import Tensor, arange, stack, tensor, where

__all__ = ["ctc_loss"]

# A logarithm that stands for zero. Infinities would make gradients of what has no part in the sum.
_NEVER = -1e30


def _lengths(name, given, batch, most):
    """A number for each sample, as a tensor; those the caller has at hand are looked at."""
    if isinstance(given, Tensor):
        if given.is_floating_point():
            raise RuntimeError(f"{name} must be integral")
        lengths = given.reshape(-1).long()
    else:
        numbers = [given] if isinstance(given, int) else list(given)
        if most is not None and any(n > most for n in numbers):
            raise RuntimeError(f"Expected {name} to have value at most {most}, but got {max(numbers)}")
        lengths = tensor(numbers)
    if lengths.numel() != batch:
        raise RuntimeError(f"{name} must be of size batch_size {batch}, but got {lengths.numel()}")
    return lengths


def _padded(targets, lengths, batch):
    """Targets as rows. Of ones that stand one after another the longest is looked at."""
    if targets.dim() == 2:
        return targets.long()
    longest = max(lengths.tolist(), default=0)
    if not longest:
        return targets.new_zeros(batch, 0).long()
    starts = lengths.cumsum(0) - lengths
    places = starts.unsqueeze(1) + arange(longest)
    return targets.long()[places.clamp(max=targets.numel() - 1)]


def _shifted(alpha, count):
    return alpha.pad((count, 0), "constant", _NEVER)[:, : alpha.shape[1]]


def _losses(log_probs, rows, input_lengths, target_lengths, blank):
    """The negative logarithm of the probability of all alignments, for each sample."""
    steps, batch, _ = log_probs.shape
    count = rows.shape[1]
    rows = where(arange(count) < target_lengths.unsqueeze(1), rows, blank)
    # A blank before each symbol, and one at the end.
    symbols = stack([rows * 0 + blank, rows], 2).flatten(1).pad((0, 1), "constant", blank)
    # What differs from the symbol before the last blank may follow it at once.
    skips = symbols != symbols.pad((2, 0), "constant", blank)[:, :-2]
    said = log_probs.gather(2, symbols.expand(steps, *symbols.shape)).clamp(min=_NEVER)
    alpha = said[0].masked_fill(arange(symbols.shape[1]) > 1, _NEVER)
    for step in range(1, steps):
        ways = [alpha, _shifted(alpha, 1), _shifted(alpha, 2).masked_fill(~skips, _NEVER)]
        moved = stack(ways).logsumexp(0) + said[step]
        alpha = where((input_lengths > step).unsqueeze(1), moved, alpha)
    last = 2 * target_lengths.unsqueeze(1)
    symbol = alpha.gather(1, (last - 1).clamp(min=0)).masked_fill(last == 0, _NEVER)
    return -stack([alpha.gather(1, last), symbol]).logsumexp(0).squeeze(1)


def ctc_loss(
    log_probs,
    targets,
    input_lengths,
    target_lengths,
    blank=0,
    reduction="mean",
    zero_infinity=False,
):
    """The negative logarithm of the probability that a sequence says its target, in whatever alignment."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if not 0 <= blank < log_probs.shape[-1]:
        raise RuntimeError("blank must be in label range")
    alone = log_probs.dim() == 2
    probs = log_probs.unsqueeze(1) if alone else log_probs
    targets = targets.unsqueeze(0) if alone and targets.dim() == 1 else targets
    steps, batch = probs.shape[:2]
    inputs = _lengths("input_lengths", input_lengths, batch, steps)
    lengths = _lengths("target_lengths", target_lengths, batch, targets.shape[1] if targets.dim() == 2 else None)
    loss = _losses(probs, _padded(targets, lengths, batch), inputs, lengths, blank)
    # PyTorch's gradient is that of the whole of softmax and loss: it has the probabilities besides, whose sum is one.
    inside = arange(steps).unsqueeze(1) < inputs
    mass = where(inside, probs.exp().sum(2), 0.0).sum(0)
    loss = loss + (mass - mass.detach())
    never = loss.detach() > -_NEVER / 10
    loss = where(never, 0.0 if zero_infinity else float("inf"), loss)
    if reduction == "mean":
        return (loss / lengths.clamp(min=1).to(loss.dtype)).mean()
    if reduction == "sum":
        return loss.sum()
    return loss.squeeze(0) if alone else loss
