"""Pruning: masks over parameters, applied before each call. Trained is `weight_orig`, the mask `weight_mask`."""

from gt import _gt
from gt.autograd.grad_mode import no_grad

__all__ = [
    "BasePruningMethod",
    "CustomFromMask",
    "Identity",
    "L1Unstructured",
    "LnStructured",
    "RandomStructured",
    "RandomUnstructured",
    "custom_from_mask",
    "global_unstructured",
    "identity",
    "is_pruned",
    "l1_unstructured",
    "ln_structured",
    "random_structured",
    "random_unstructured",
    "remove",
]


class BasePruningMethod:
    """Says which elements stay: subclasses write `compute_mask(t, default_mask)`, and what kind they are."""

    # "unstructured": among what stays so far. "structured": among slices that have some of it. "global": of all.
    PRUNING_TYPE = "unstructured"
    _tensor_name: str

    def compute_mask(self, t, default_mask):
        raise NotImplementedError

    def __call__(self, module, inputs):
        setattr(module, self._tensor_name, self.apply_mask(module))

    def apply_mask(self, module):
        """The original where the mask is one."""
        mask, original = getattr(module, f"{self._tensor_name}_mask"), getattr(module, f"{self._tensor_name}_orig")
        return mask.to(original.dtype) * original

    def prune(self, t, default_mask=None, importance_scores=None):
        """A tensor with its pruned elements set to zero."""
        mask = _gt.ones_like(t) if default_mask is None else default_mask
        return t * self.compute_mask(t if importance_scores is None else importance_scores, mask)

    @classmethod
    def apply(cls, module, name, *args, importance_scores=None, **kwargs):
        """Prunes a parameter, further if it was pruned before."""
        method = cls(*args, **kwargs)
        method._tensor_name = name
        old = next(
            (h for h in module._forward_pre_hooks if isinstance(h, BasePruningMethod) and h._tensor_name == name), None
        )
        original = getattr(module, name) if old is None else getattr(module, f"{name}_orig")
        mask = _gt.ones_like(original) if old is None else getattr(module, f"{name}_mask").to(original.dtype)
        scores = original if importance_scores is None else importance_scores
        if scores.shape != original.shape:
            raise AssertionError(
                f"importance_scores should have the same shape as parameter {name} of {module}, got {scores.shape}"
            )
        with no_grad():
            mask = method._combined(scores.detach(), mask.detach())
        if old is None:
            delattr(module, name)
            module.register_parameter(f"{name}_orig", original)
            module.register_buffer(f"{name}_mask", mask)
        else:
            old._handle.remove()
            setattr(module, f"{name}_mask", mask)
        method(module, None)
        method._handle = module.register_forward_pre_hook(method)
        return method

    def _combined(self, scores, mask):
        """What stays of what stayed before."""
        if self.PRUNING_TYPE == "global" or bool((mask == 1).all()):
            return self.compute_mask(scores, mask)
        if self.PRUNING_TYPE == "unstructured":
            stays = mask == 1
            part = self.compute_mask(scores[stays], _gt.ones_like(mask[stays]))
            new = mask.clone()
            new[stays] = part.to(mask.dtype)
            return new
        if self.PRUNING_TYPE == "structured":
            dim = self.dim % scores.dim()
            others = [d for d in range(scores.dim()) if d != dim]
            kept = (mask.sum(others) != 0).nonzero().squeeze(1)
            part = self.compute_mask(scores.index_select(dim, kept), mask.index_select(dim, kept))
            return mask.index_copy(dim, kept, part.to(mask.dtype))
        raise ValueError(f"Unrecognized PRUNING_TYPE {self.PRUNING_TYPE}")

    def remove(self, module):
        """Makes the parameter plain again, with its zeros."""
        name = self._tensor_name
        with no_grad():
            weight = self.apply_mask(module)
        original = getattr(module, f"{name}_orig")
        delattr(module, name)
        delattr(module, f"{name}_orig")
        delattr(module, f"{name}_mask")
        original.data = weight.detach()
        module.register_parameter(name, original)
        self._handle.remove()


def _checked(amount):
    if not isinstance(amount, (int, float)) or isinstance(amount, bool):
        raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
    if amount < 0 or (isinstance(amount, float) and amount > 1.0):
        raise ValueError(f"amount={amount} should be a non-negative integer or a float in [0.0, 1.0]")
    return amount


def _count(amount, size):
    if isinstance(amount, int):
        if amount > size:
            raise ValueError(f"amount={amount} should be smaller than the number of parameters to prune={size}")
        return amount
    return round(amount * size)


class Identity(BasePruningMethod):
    """Prunes nothing."""

    def compute_mask(self, t, default_mask):
        return default_mask


class _Ranked(BasePruningMethod):
    """Prunes the elements of the lowest score."""

    def __init__(self, amount):
        self.amount = _checked(amount)

    def _scores(self, t):
        raise NotImplementedError

    def compute_mask(self, t, default_mask):
        count, mask = _count(self.amount, t.numel()), default_mask.clone()
        if count:
            lowest = self._scores(t).reshape(-1).topk(count, largest=False).indices
            mask.view(-1)[lowest] = 0
        return mask


class RandomUnstructured(_Ranked):
    """Prunes elements drawn at random."""

    def _scores(self, t):
        return _gt.rand(t.shape)


class L1Unstructured(_Ranked):
    """Prunes the smallest elements."""

    def _scores(self, t):
        return t.abs()


class _Slices(BasePruningMethod):
    """Prunes whole slices along a dimension, those of the lowest score."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount, dim=-1):
        self.amount, self.dim = _checked(amount), dim

    def _scores(self, t, others):
        raise NotImplementedError

    def compute_mask(self, t, default_mask):
        if t.dim() < 2:
            raise ValueError(
                f"Structured pruning can only be applied to multidimensional tensors. Found tensor of shape {t.shape}"
            )
        dim = self.dim % t.dim()
        count = _count(self.amount, t.shape[dim])
        if not count:
            return default_mask
        scores = self._scores(t, [d for d in range(t.dim()) if d != dim])
        kept = scores.topk(t.shape[dim] - count, largest=True).indices
        stays = _gt.zeros(t.shape[dim], dtype=default_mask.dtype)
        stays[kept] = 1
        return default_mask * stays.view([-1 if d == dim else 1 for d in range(t.dim())])


class RandomStructured(_Slices):
    """Prunes slices drawn at random."""

    def _scores(self, t, others):
        return _gt.rand(t.shape[self.dim])


class LnStructured(_Slices):
    """Prunes the slices of the smallest norm."""

    def __init__(self, amount, n, dim=-1):
        super().__init__(amount, dim)
        self.n = n

    def _scores(self, t, others):
        return t.norm(self.n, others)


class CustomFromMask(BasePruningMethod):
    """Prunes where a mask is zero."""

    PRUNING_TYPE = "global"

    def __init__(self, mask):
        self.mask = mask

    def compute_mask(self, t, default_mask):
        return default_mask * self.mask.to(default_mask.dtype)


def identity(module, name):
    """Makes a parameter a pruned one of which everything stays."""
    Identity.apply(module, name)
    return module


def random_unstructured(module, name, amount):
    """Prunes elements drawn at random: as many as `amount`, or that part of them."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module, name, amount, importance_scores=None):
    """Prunes the smallest elements: as many as `amount`, or that part of them."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module, name, amount, dim):
    """Prunes slices drawn at random."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(module, name, amount, n, dim, importance_scores=None):
    """Prunes the slices of the smallest norm."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module, name, mask):
    """Prunes where a mask is zero."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(parameters, pruning_method, importance_scores=None, **kwargs):
    """Prunes the elements of the lowest score of several parameters together, `(module, name)` each."""
    parameters = list(parameters)
    scores, masks = [], []
    for module, name in parameters:
        original = getattr(module, f"{name}_orig", None)
        original = getattr(module, name) if original is None else original
        score = (importance_scores or {}).get((module, name), original)
        scores.append(score.detach().reshape(-1))
        masks.append(getattr(module, f"{name}_mask", _gt.ones_like(original)).detach().reshape(-1))
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            f'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found {method.PRUNING_TYPE}'
        )
    mask, at = method._combined(_gt.cat(scores), _gt.cat(masks)), 0
    for (module, name), score in zip(parameters, scores):
        part = mask[at : at + score.numel()]
        custom_from_mask(module, name, part.view_as(getattr(module, name)))
        at += score.numel()


def remove(module, name):
    """Makes a pruned parameter plain again, with its zeros."""
    for hook in module._forward_pre_hooks:
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            hook.remove(module)
            return module
    raise ValueError(f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed")


def is_pruned(module):
    """True if a parameter in a module is pruned."""
    return any(isinstance(hook, BasePruningMethod) for inner in module.modules() for hook in inner._forward_pre_hooks)
