"""L-BFGS: steps along directions that a short history of gradients makes better than the gradient."""

import math

from gt._gt import cat, zeros_like
from gt.autograd.grad_mode import enable_grad, no_grad
from gt.optim.optimizer import Optimizer


class LBFGS(Optimizer):
    """Minimises what a closure computes, which is called several times a step: `optimizer.step(closure)`."""

    _later = {"maximize": False}

    def __init__(
        self,
        params,
        lr=1,
        max_iter=20,
        max_eval=None,
        tolerance_grad=1e-7,
        tolerance_change=1e-9,
        history_size=100,
        line_search_fn=None,
        *,
        maximize=False,
    ):
        if not float(lr) >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        settings = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
            "maximize": maximize,
        }
        super().__init__(params, settings)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    @property
    def _params(self):
        return self.param_groups[0]["params"]

    def _gradient(self):
        """All gradients as one vector."""
        every = cat([(zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self._params])
        return -every if self.param_groups[0]["maximize"] else every

    def _move(self, by, direction):
        """Moves all parameters along a vector."""
        at = 0
        for p in self._params:
            p.add_(direction[at : at + p.numel()].view_as(p), alpha=by)
            at += p.numel()

    @no_grad()
    def step(self, closure):  # type: ignore[override]
        """One step, which is up to `max_iter` iterations; gives the loss that the closure computed first."""
        group, state = self.param_groups[0], self.state[self._params[0]]
        closure = enable_grad()(closure)
        sign = -1.0 if group["maximize"] else 1.0

        def evaluate():
            return sign * float(closure()), self._gradient()

        first = closure()
        loss, gradient = sign * float(first), self._gradient()
        state["func_evals"] = state.get("func_evals", 0) + 1
        state.setdefault("n_iter", 0)
        evals = 1
        if float(gradient.abs().max()) <= group["tolerance_grad"]:
            return first
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            direction = self._direction(gradient, state, group["history_size"])
            before, state["prev_loss"] = loss, loss
            state["prev_flat_grad"] = gradient
            step = float(group["lr"])
            if state["n_iter"] == 1:
                step *= min(1.0, 1.0 / float(gradient.abs().sum()))
            state["d"], state["t"] = direction, step
            slope = float(gradient.dot(direction))
            if slope > -group["tolerance_change"]:
                break
            if group["line_search_fn"] is not None:
                if group["line_search_fn"] != "strong_wolfe":
                    raise RuntimeError("only 'strong_wolfe' is supported")
                start = [p.clone() for p in self._params]

                def at(step, direction=direction, start=start):
                    self._move(step, direction)
                    point = _Point(step, *evaluate(), direction)
                    for p, old in zip(self._params, start):
                        p.copy_(old)
                    return point

                here = _Point(0.0, loss, gradient, direction)
                found, used = strong_wolfe(at, here, step, direction, group["max_eval"] - evals)
                loss, gradient, state["t"] = found.loss, found.gradient, found.step
                self._move(found.step, direction)
            else:
                self._move(step, direction)
                used = 0
                if iteration != group["max_iter"]:
                    # Nobody would use it after the last.
                    (loss, gradient), used = evaluate(), 1
            evals += used
            state["func_evals"] += used
            if (
                evals >= group["max_eval"]
                or (used and float(gradient.abs().max()) <= group["tolerance_grad"])
                or float((direction * state["t"]).abs().max()) <= group["tolerance_change"]
                or abs(loss - before) < group["tolerance_change"]
            ):
                break
        return first

    def _direction(self, gradient, state, most):
        """Where to go from here. The history is told of the last step first."""
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
            return -gradient
        change, moved = gradient - state["prev_flat_grad"], state["d"] * state["t"]
        along = change.dot(moved)
        changes, moves, scales = state["old_dirs"], state["old_stps"], state["ro"]
        if float(along) > 1e-10:
            if len(changes) == most:
                for kept in (changes, moves, scales):
                    kept.pop(0)
            changes.append(change)
            moves.append(moved)
            scales.append(1.0 / along)
            state["H_diag"] = along / change.dot(change)
        direction, parts = -gradient, []
        for change, moved, scale in zip(reversed(changes), reversed(moves), reversed(scales)):
            parts.append(moved.dot(direction) * scale)
            direction = direction - change * parts[-1]
        direction = direction * state["H_diag"]
        for change, moved, scale in zip(changes, moves, scales):
            direction = direction + moved * (parts.pop() - change.dot(direction) * scale)
        return direction

    def _loaded(self, name, value, param):
        if isinstance(value, list):
            return [super(LBFGS, self)._loaded(name, item, param) for item in value]
        return super()._loaded(name, value, param)


class _Point:
    """The loss and its gradient after a step, and the slope along the direction there."""

    def __init__(self, step, loss, gradient, direction):
        self.step, self.loss, self.gradient = step, loss, gradient
        self.slope = float(gradient.dot(direction))


def minimum(a, b, bounds=None):
    """The step at the least value of the cubic through two points, within bounds: those of the two by default."""
    low, high = bounds or sorted((a.step, b.step))
    if a.step > b.step:
        a, b = b, a
    if a.step == b.step:
        return (low + high) / 2.0
    middle = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.step - b.step)
    square = middle**2 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2.0
    root = math.sqrt(square)
    if b.slope - a.slope + 2 * root == 0:
        return (low + high) / 2.0
    step = b.step - (b.step - a.step) * ((b.slope + root - middle) / (b.slope - a.slope + 2 * root))
    return min(max(step, low), high)


# The loss is to fall by this part of what the slope promises, and the slope to this part of what it was.
FALL = 1e-4
FLATTEN = 0.9
# The least change that counts.
LEAST = 1e-9


def strong_wolfe(at, start, step, direction, most):
    """A step along a direction after which both the loss and the slope are as they should be. Gives the point and how
    many were looked at, `most` beside the first."""
    size = float(direction.abs().max())

    def falls(point):
        return point.loss <= start.loss + FALL * point.step * start.slope

    def flat(point):
        return abs(point.slope) <= -FLATTEN * start.slope

    # A stretch that has such a step: it ends too far or uphill.
    last, point, trial = start, at(step), 0
    while trial < most:
        if not falls(point) or (trial > 1 and point.loss >= last.loss):
            break
        if flat(point):
            return point, trial + 1
        if point.slope >= 0:
            break
        bounds = (point.step + 0.01 * (point.step - last.step), point.step * 10)
        last, point = point, at(minimum(last, point, bounds))
        trial += 1
    stretch = [start if trial == most else last, point]

    # The stretch is narrowed, with its lower end at `low`.
    stuck = False
    low, high = (0, 1) if stretch[0].loss <= stretch[-1].loss else (1, 0)
    while trial < most:
        ends = sorted(point.step for point in stretch)
        width = ends[1] - ends[0]
        if width * size < LEAST:
            break
        step = minimum(stretch[0], stretch[1])
        # Too near to an end, twice in a row or at it: a little inside.
        margin = 0.1 * width
        if min(ends[1] - step, step - ends[0]) < margin:
            if stuck or step >= ends[1] or step <= ends[0]:
                step = ends[1] - margin if abs(step - ends[1]) < abs(step - ends[0]) else ends[0] + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        point = at(step)
        trial += 1
        if not falls(point) or point.loss >= stretch[low].loss:
            stretch[high] = point
            low, high = (0, 1) if stretch[0].loss <= stretch[1].loss else (1, 0)
            continue
        if flat(point):
            return point, trial + 1
        if point.slope * (stretch[high].step - stretch[low].step) >= 0:
            stretch[high] = stretch[low]
        stretch[low] = point
    return stretch[low], trial + 1
