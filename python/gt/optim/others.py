"""Optimizers written with tensor operations, with PyTorch's numbers."""

import math

from gt._gt import as_tensor, full_like, ones, ones_like, zeros, zeros_like
from gt.autograd.grad_mode import no_grad
from gt.optim.optimizer import Optimizer


def _check(**values):
    for name, value in values.items():
        if not 0.0 <= value:
            raise ValueError(f"Invalid {name} value: {value}")


class _Each(Optimizer):
    """An optimizer that steps one parameter after the other."""

    # Settings that PyTorch's optimizer has and that change nothing here.
    _more: dict = {"capturable": False, "differentiable": False}
    # Weight decay is a part of the gradient.
    _decays = True

    def __init__(self, params, defaults, *, maximize=False, foreach=None, **more):
        if more.get("differentiable"):
            raise ValueError("optimizer: differentiable=True is not supported; a step keeps no gradient history")
        for name in set(more) - set(self._more):
            raise TypeError(f"{type(self).__name__}: got an unexpected keyword argument '{name}'")
        extra = {"maximize": maximize, "foreach": foreach, **self._more, **more}
        super().__init__(params, {**defaults, **extra})

    @no_grad()
    def _step(self, group):
        for p in group["params"]:
            if p.grad is None:
                continue
            grad = -p.grad if group["maximize"] else p.grad
            state = self.state[p]
            if not state:
                state["step"] = 0
                self._start(p, state, group)
            state["step"] += 1
            if self._decays and group.get("weight_decay") and not group.get("decoupled_weight_decay"):
                grad = grad + group["weight_decay"] * p
            self._update(p, grad, state, group)

    def _start(self, p, state, group):
        """Fills what is kept for a parameter."""

    def _update(self, p, grad, state, group):
        raise NotImplementedError


class RMSprop(_Each):
    """Gradients divided by a running root of their squares."""

    def __init__(self, params, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=False, **options):
        _check(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        settings = {"lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered}
        super().__init__(params, {**settings, "weight_decay": weight_decay}, **options)

    def _start(self, p, state, group):
        state["square_avg"] = zeros_like(p)
        if group["momentum"] > 0:
            state["momentum_buffer"] = zeros_like(p)
        if group["centered"]:
            state["grad_avg"] = zeros_like(p)

    def _update(self, p, grad, state, group):
        alpha, square = group["alpha"], state["square_avg"]
        square.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
        if group["centered"]:
            mean = state["grad_avg"].lerp_(grad, 1 - alpha)
            root = (square - mean * mean).sqrt() + group["eps"]
        else:
            root = square.sqrt() + group["eps"]
        if group["momentum"] > 0:
            buffer = state["momentum_buffer"].mul_(group["momentum"]).addcdiv_(grad, root)
            p.add_(buffer, alpha=-group["lr"])
        else:
            p.addcdiv_(grad, root, value=-group["lr"])


class Adagrad(_Each):
    """Gradients divided by the root of the sum of their squares."""

    _more = {"fused": None, "differentiable": False}

    def __init__(self, params, lr=1e-2, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10, **options):
        _check(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)
        _check(initial_accumulator_value=initial_accumulator_value)
        settings = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "initial_accumulator_value": initial_accumulator_value}, **options)

    def _start(self, p, state, group):
        state["sum"] = full_like(p, group["initial_accumulator_value"])

    def _update(self, p, grad, state, group):
        lr = group["lr"] / (1 + (state["step"] - 1) * group["lr_decay"])
        total = state["sum"].addcmul_(grad, grad)
        p.addcdiv_(grad, total.sqrt() + group["eps"], value=-lr)


class Adadelta(_Each):
    """Steps scaled by a running root of the squares of earlier steps over that of the gradients."""

    def __init__(self, params, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0, **options):
        _check(lr=lr, eps=eps, weight_decay=weight_decay)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}, **options)

    def _start(self, p, state, group):
        state["square_avg"], state["acc_delta"] = zeros_like(p), zeros_like(p)

    def _update(self, p, grad, state, group):
        rho, eps = group["rho"], group["eps"]
        square = state["square_avg"].mul_(rho).addcmul_(grad, grad, value=1 - rho)
        delta = (state["acc_delta"] + eps).sqrt() / (square + eps).sqrt() * grad
        state["acc_delta"].mul_(rho).addcmul_(delta, delta, value=1 - rho)
        p.add_(delta, alpha=-group["lr"])


class _WithBetas(_Each):
    """What Adam's relatives share."""

    def __init__(self, params, lr, betas, eps, weight_decay, more=None, **options):
        _check(lr=lr, eps=eps, weight_decay=weight_decay)
        for i, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
        settings = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**settings, **(more or {})}, **options)

    def _start(self, p, state, group):
        state["exp_avg"], state["exp_avg_sq"] = zeros_like(p), zeros_like(p)

    def _averages(self, grad, state, group):
        """The running means of the gradient and of its square."""
        first, second = group["betas"]
        mean = state["exp_avg"].lerp_(grad, 1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(grad, grad, value=1 - second)
        return mean, square


class Adamax(_WithBetas):
    """Adam with the largest gradient in place of the root of squares."""

    def __init__(self, params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, **options):
        super().__init__(params, lr, betas, eps, weight_decay, **options)

    def _start(self, p, state, group):
        state["exp_avg"], state["exp_inf"] = zeros_like(p), zeros_like(p)

    def _update(self, p, grad, state, group):
        first, second = group["betas"]
        mean = state["exp_avg"].lerp_(grad, 1 - first)
        largest = state["exp_inf"].copy_((state["exp_inf"] * second).maximum(grad.abs() + group["eps"]))
        p.addcdiv_(mean, largest, value=-group["lr"] / (1 - first ** state["step"]))


class NAdam(_WithBetas):
    """Adam with Nesterov's momentum."""

    def __init__(
        self,
        params,
        lr=2e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        momentum_decay=4e-3,
        decoupled_weight_decay=False,
        **options,
    ):
        _check(momentum_decay=momentum_decay)
        more = {"momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, lr, betas, eps, weight_decay, more, **options)

    def _start(self, p, state, group):
        state["mu_product"] = ones(())
        super()._start(p, state, group)

    def _update(self, p, grad, state, group):
        step, lr, (first, second) = state["step"], group["lr"], group["betas"]
        if group["decoupled_weight_decay"] and group["weight_decay"]:
            p.mul_(1 - lr * group["weight_decay"])
        now = first * (1 - 0.5 * 0.96 ** (step * group["momentum_decay"]))
        after = first * (1 - 0.5 * 0.96 ** ((step + 1) * group["momentum_decay"]))
        product = state["mu_product"].mul_(now)
        mean, square = self._averages(grad, state, group)
        root = (square / (1 - second**step)).sqrt() + group["eps"]
        p.sub_(grad / root * (lr * (1 - now) / (1 - product)))
        p.sub_(mean / root * (lr * after / (1 - product * after)))


class RAdam(_WithBetas):
    """Adam that trusts the squares only once their variance is small."""

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        decoupled_weight_decay=False,
        **options,
    ):
        more = {"decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, lr, betas, eps, weight_decay, more, **options)

    def _update(self, p, grad, state, group):
        step, lr, (first, second) = state["step"], group["lr"], group["betas"]
        if group["decoupled_weight_decay"] and group["weight_decay"]:
            p.mul_(1 - lr * group["weight_decay"])
        mean, square = self._averages(grad, state, group)
        left = 1 - second**step
        corrected = mean / (1 - first**step)
        most = 2 / (1 - second) - 1
        length = most - 2 * step * second**step / left
        if length <= 5:
            p.add_(corrected, alpha=-lr)
            return
        rect = math.sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length))
        p.add_(corrected * math.sqrt(left) / (square.sqrt() + group["eps"]), alpha=-lr * rect)


class Rprop(_Each):
    """Steps of a size for each number, which grows while its gradient keeps its sign and shrinks when that changes."""

    def __init__(self, params, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50), **options):
        _check(lr=lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        super().__init__(params, {"lr": lr, "etas": etas, "step_sizes": step_sizes}, **options)

    def _start(self, p, state, group):
        state["prev"], state["step_size"] = zeros_like(p), full_like(p, float(group["lr"]))

    def _update(self, p, grad, state, group):
        (shrink, grow), (least, most) = group["etas"], group["step_sizes"]
        turn = grad * state["prev"]
        turned = turn < 0
        factor = ones_like(turn).masked_fill(turn > 0, grow).masked_fill(turned, shrink)
        size = state["step_size"].mul_(factor).clamp_(least, most)
        grad = grad.masked_fill(turned, 0.0)
        p.addcmul_(grad.sign(), size, value=-1)
        state["prev"].copy_(grad)


class ASGD(_Each):
    """Gradient descent with a falling rate, whose parameters are averaged on the side."""

    def __init__(self, params, lr=1e-2, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0, **options):
        _check(lr=lr, weight_decay=weight_decay)
        settings = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay}
        super().__init__(params, settings, **options)

    def _start(self, p, state, group):
        state["eta"], state["mu"], state["ax"] = as_tensor(float(group["lr"])), ones(()), zeros_like(p)

    def _update(self, p, grad, state, group):
        step, lr, decay = state["step"], float(group["lr"]), group["lambd"]
        rate = state["eta"].to(p.dtype)
        p.mul_(1 - decay * rate).sub_(grad * rate)
        if step - 1 > group["t0"] + 1:
            state["ax"].add_((p - state["ax"]) * state["mu"].to(p.dtype))
        else:
            state["ax"].copy_(p)
        state["eta"] = as_tensor(lr / (1 + decay * lr * step) ** group["alpha"])
        state["mu"] = as_tensor(1 / max(1.0, step - group["t0"]))

    def _loaded(self, name, value, param):
        if name in ("eta", "mu"):
            return as_tensor(float(value))
        return super()._loaded(name, value, param)


class Muon(Optimizer):
    """Steps of a momentum whose directions all count alike: matrices only."""

    def __init__(
        self,
        params,
        lr=1e-3,
        weight_decay=0.1,
        momentum=0.95,
        nesterov=True,
        ns_coefficients=(3.4445, -4.7750, 2.0315),
        eps=1e-7,
        ns_steps=5,
        adjust_lr_fn=None,
    ):
        _check(lr=lr, weight_decay=weight_decay, momentum=momentum)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw", "spectral_unclamped"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        if ns_steps >= 100:
            raise ValueError("Number of steps must be less than 100 for computational efficiency")
        if len(ns_coefficients) != 3:
            raise ValueError("Coefficients must be a tuple of exactly 3 values")
        settings = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        settings.update(ns_coefficients=ns_coefficients, eps=eps, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn)
        super().__init__(params, settings)
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.dim() != 2:
                raise ValueError(
                    f"Muon only supports 2D parameters whereas we found a parameter with size: {list(p.shape)}"
                )

    @no_grad()
    def _step(self, group):
        lr, momentum = float(group["lr"]), group["momentum"]
        for p in group["params"]:
            if p.grad is None:
                continue
            state, grad = self.state[p], p.grad
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = zeros_like(grad)
            mean = state["momentum_buffer"].lerp_(grad, 1 - momentum)
            update = self._even(grad.lerp(mean, momentum) if group["nesterov"] else mean, group)
            rows, columns = p.shape
            scale = {
                "match_rms_adamw": 0.2 * math.sqrt(max(rows, columns)),
                "spectral_unclamped": math.sqrt(rows / columns),
            }.get(group["adjust_lr_fn"], math.sqrt(max(1, rows / columns)))
            p.mul_(1 - lr * group["weight_decay"])
            p.add_(update, alpha=-lr * scale)

    def _even(self, matrix, group):
        """A matrix whose singular values are near one, by Newton's and Schulz's iteration."""
        a, b, c = group["ns_coefficients"]
        tall = matrix.shape[0] > matrix.shape[1]
        x = matrix.bfloat16()
        x = x.T if tall else x
        x = x / x.norm().clamp(min=group["eps"])
        for _ in range(group["ns_steps"]):
            square = x @ x.T
            x = x.addmm(square.addmm(square, square, beta=b, alpha=c), x, beta=a)
        return x.T if tall else x


class Adafactor(_Each):
    """Squares of gradients kept for rows and columns instead of every number; steps as large as the parameters say."""

    _more: dict = {}
    _decays = False

    def __init__(self, params, lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0, **options):
        _check(lr=lr, weight_decay=weight_decay)
        if beta2_decay > 0.0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
        if eps[0] is not None and eps[0] < 0.0:
            raise ValueError(f"epsilon1 should be >= 0 but is: {eps[0]}")
        if eps[1] < 0.0:
            raise ValueError(f"epsilon2 should be >= 0 but is: {eps[1]}")
        if d < 1.0:
            raise ValueError(f"Clipping threshold d should be >= 1 but is: {d}")
        settings = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, settings, **options)

    def _start(self, p, state, group):
        if p.dim() > 1:
            rows, columns = list(p.shape), list(p.shape)
            rows[-1] = columns[-2] = 1
            state["row_var"], state["col_var"] = zeros(rows, dtype=p.dtype), zeros(columns, dtype=p.dtype)
        else:
            state["variance"] = zeros_like(p)

    def _update(self, p, grad, state, group):
        step, lr, root = state["step"], group["lr"], math.sqrt(p.numel())
        least, smallest = group["eps"]
        if least is None:
            from gt.composed.info import finfo

            least = finfo(p.dtype).eps
        new = step ** group["beta2_decay"]
        rate = (p.norm() / root).clamp(min=smallest) * min(lr, 1 / math.sqrt(step))
        if group["weight_decay"]:
            p.mul_(1 - lr * group["weight_decay"])
        square = grad * grad
        if p.dim() > 1:
            rows = state["row_var"].lerp_(square.mean(-1, keepdim=True), new)
            columns = state["col_var"].lerp_(square.mean(-2, keepdim=True), new)
            variance = rows @ columns / rows.mean(-2, keepdim=True).clamp(min=least)
        else:
            variance = state["variance"].lerp_(square, new)
        update = grad * variance.clamp(min=least * least).rsqrt()
        p.sub_(update * (rate / (update.norm() / (root * group["d"])).clamp(min=1.0)))
