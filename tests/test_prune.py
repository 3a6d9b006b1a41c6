"""Pruned weights, and weights computed before each call, against PyTorch."""

import numpy as np
import pytest
from helpers import check, needs_torch, torch

import gt

if torch:
    import torch.nn.utils.prune


def layer(T, make):
    module, rng = make(T.nn).double(), np.random.default_rng(0)
    module.load_state_dict(
        {k: T.from_numpy(rng.standard_normal(tuple(v.shape))) for k, v in module.state_dict().items()}
    )
    return module


def conv(nn):
    return nn.Conv2d(2, 6, 3)


def twice(T, prune):
    module = layer(T, conv)
    prune.l1_unstructured(module, "weight", 0.3)
    prune.ln_structured(module, "weight", 2, n=2, dim=0)
    prune.l1_unstructured(module, "weight", amount=10)
    return module


def everywhere(T, prune):
    module = layer(T, lambda nn: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 6, 3)))
    prune.identity(module[0], "bias")
    prune.l1_unstructured(module[1], "weight", 5)
    parts = [(module[0], "weight"), (module[1], "weight")]
    prune.global_unstructured(parts, pruning_method=prune.L1Unstructured, amount=0.4)
    return module


KINDS = {
    "l1": lambda T, prune: prune.l1_unstructured(layer(T, conv), "weight", 0.4),
    "count": lambda T, prune: prune.l1_unstructured(layer(T, conv), "bias", 2),
    "scores": lambda T, prune: prune.l1_unstructured(
        layer(T, conv), "bias", 2, importance_scores=T.tensor([1.0, 5.0, 2.0, 0.1, 4.0, 3.0])
    ),
    "rows": lambda T, prune: prune.ln_structured(layer(T, conv), "weight", 0.5, n=2, dim=0),
    "mask": lambda T, prune: prune.custom_from_mask(layer(T, conv), "bias", T.tensor([1, 0, 1, 1, 0, 1])),
    "twice": twice,
    "everywhere": everywhere,
}


@needs_torch
@pytest.mark.parametrize("kind", KINDS)
def test_pruning_against_torch(kind):
    seen = []
    for T in (gt, torch):
        prune = T.nn.utils.prune
        module = KINDS[kind](T, prune)
        assert prune.is_pruned(module)
        x = T.from_numpy(np.random.default_rng(1).standard_normal((2, 2, 5, 5)))
        out = module(x)
        out.sin().sum().backward()
        state = dict(sorted(module.state_dict().items()))
        named = sorted(n for n, _ in module.named_parameters())
        seen.append(
            [out, [p.grad for _, p in sorted(module.named_parameters())], list(state), list(state.values()), named]
        )
    check(*seen)


@needs_torch
def test_pruning_ends():
    seen = []
    for T in (gt, torch):
        module = twice(T, T.nn.utils.prune)
        T.nn.utils.prune.remove(module, "weight")
        assert not T.nn.utils.prune.is_pruned(module)
        seen.append(
            [dict(sorted(module.state_dict().items())).values(), [n for n, _ in sorted(module.named_parameters())]]
        )
    check([list(seen[0][0]), seen[0][1]], [list(seen[1][0]), seen[1][1]])


def test_random_pruning_and_what_is_refused():
    prune = gt.nn.utils.prune
    module = prune.random_unstructured(conv(gt.nn), "weight", 0.25)
    assert int((module.weight == 0).sum()) == 27
    module = prune.random_structured(conv(gt.nn), "weight", 2, dim=0)
    assert int((module.weight_mask.sum((1, 2, 3)) == 0).sum()) == 2
    with pytest.raises(ValueError, match="non-negative"):
        prune.l1_unstructured(conv(gt.nn), "weight", 1.5)
    with pytest.raises(ValueError, match="smaller than"):
        prune.l1_unstructured(conv(gt.nn), "bias", 7)
    with pytest.raises(ValueError, match="has to be pruned"):
        prune.remove(conv(gt.nn), "weight")


@needs_torch
@pytest.mark.parametrize("kind", ["weight", "weight of columns", "spectral", "spectral transposed", "parametrized"])
def test_norms_against_torch(kind):
    seen = []
    for T in (gt, torch):
        utils = T.nn.utils
        module = layer(T, (lambda nn: nn.ConvTranspose2d(2, 6, 3)) if "transposed" in kind else conv)
        if kind == "parametrized":
            utils.parametrizations.spectral_norm(module, n_power_iterations=3)
        elif "spectral" in kind:
            utils.spectral_norm(module, n_power_iterations=2)
        else:
            utils.weight_norm(module, dim=1 if "columns" in kind else 0)
        # The vectors that iterations begin with are random.
        rng = np.random.default_rng(2)
        state = {k: rng.standard_normal(tuple(v.shape)) for k, v in module.state_dict().items()}
        state = {k: v / np.linalg.norm(v) if k[-2:] in ("_u", "_v") and v.ndim == 1 else v for k, v in state.items()}
        # PyTorch computes the second vector anew when it loads state without its version.
        for k, v in module.state_dict().items():
            v.copy_(T.from_numpy(state[k]))
        x = T.from_numpy(np.random.default_rng(1).standard_normal((2, 2, 5, 5)))
        first, second = module(x), module(x)
        second.sin().sum().backward()
        grads = [p.grad for _, p in sorted(module.named_parameters())]
        module.eval()
        kept = [v for k, v in sorted(module.state_dict().items())]
        seen.append([first, second, module(x), grads, sorted(module.state_dict()), kept])
    check(*seen)


def test_norms_end():
    utils, x = gt.nn.utils, gt.randn(1, 2, 5, 5)
    for add, remove in (
        (utils.weight_norm, utils.remove_weight_norm),
        (utils.spectral_norm, utils.remove_spectral_norm),
    ):
        module = add(conv(gt.nn))
        module.eval()
        out = module(x)
        remove(module)
        check(module(x), out.detach().numpy(), (1e-6, 1e-6))
        assert sorted(module.state_dict()) == ["bias", "weight"]
        with pytest.raises(ValueError, match="not found"):
            remove(module)
        with pytest.raises(RuntimeError, match="Cannot register two"):
            add(add(conv(gt.nn)))
