"""Saved states of modules at the edges: as in PyTorch, where it can be imported."""

import numpy as np
import pytest
from helpers import torch

import gt

LIBRARIES = [gt] if torch is None else [gt, torch]
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)


@each_library
def test_norms_load_states_that_do_not_count_batches(library):
    norm = library.nn.Sequential(library.nn.BatchNorm1d(3))
    norm.train()(library.ones(4, 3))
    state = norm.state_dict()
    values = {name: value * 2 for name, value in state.items() if not name.endswith("tracked")}
    keys = norm.load_state_dict(values)
    assert not any(keys) and norm[0].running_var[0].item() == pytest.approx(1.8)
    assert norm[0].num_batches_tracked.item() == 1
    del state["0.num_batches_tracked"]
    with pytest.raises(RuntimeError, match='Missing key.*"0.num_batches_tracked"'):
        norm.load_state_dict(state)


@each_library
def test_a_scalar_takes_a_tensor_of_one(library):
    module = library.nn.Module()
    module.scale = library.nn.Parameter(library.zeros(()))
    module.load_state_dict({"scale": library.ones(1)})
    assert module.scale.item() == 1
    if library is gt:
        module.load_state_dict({"scale": np.full(1, 3, "f4")})
        assert module.scale.item() == 3
    with pytest.raises(RuntimeError, match="size mismatch for scale"):
        module.load_state_dict({"scale": library.ones(1, 1)})


@each_library
def test_hooks_of_states(library):
    layer, seen = library.nn.Linear(1, 1), []
    layer.register_state_dict_post_hook(lambda module, state, prefix, about: seen.append((prefix, about)))
    library.nn.Sequential(layer).state_dict()
    assert seen == [("0.", {"version": 1})]
    layer.register_state_dict_post_hook(lambda *args: {})
    with pytest.raises(RuntimeError, match="state_dict post-hook must return None"):
        layer.state_dict()


@each_library
@pytest.mark.filterwarnings("ignore:Positional args")
def test_the_state_of_two_modules_in_one(library):
    state = {}
    library.nn.Linear(1, 1).state_dict(state, "a.")
    library.nn.Linear(1, 1, bias=False).state_dict(state, "b.")
    assert list(state) == ["a.weight", "a.bias", "b.weight"]


@each_library
def test_assigned_parameters_are_trained_as_the_model_says(library):
    layer = library.nn.Linear(1, 1)
    layer.bias.requires_grad_(False)
    given = {name: library.nn.Parameter(library.ones(*p.shape), name == "bias") for name, p in layer.named_parameters()}
    layer.load_state_dict(given, assign=True)
    assert layer.weight is given["weight"] and layer.weight.requires_grad and not layer.bias.requires_grad


@each_library
def test_unexpected_keys_are_listed_once(library):
    net = library.nn.Sequential(library.nn.Linear(1, 1))
    state = {**net.state_dict(), "0.": library.ones(1), "0": library.ones(1), "0.weight.x": library.ones(1)}
    assert net.load_state_dict(state, strict=False).unexpected_keys == ["0", "0.", "0.weight.x"]


@each_library
def test_hooks_under_their_older_names(library):
    module = library.nn.Linear(2, 2)
    module._register_state_dict_hook(lambda m, state, prefix, about: {"all": list(state)})
    assert module.state_dict() == {"all": ["weight", "bias"]}
    old, seen = library.nn.Linear(2, 2), []

    def rename(state, prefix, *about):
        seen.append(len(about))
        state[prefix + "weight"] = state.pop(prefix + "kernel")

    old._register_load_state_dict_pre_hook(rename)
    old._register_load_state_dict_pre_hook(lambda m, state, *about: seen.append(m is old), with_module=True)
    old.load_state_dict({"kernel": library.ones(2, 2), "bias": library.zeros(2)})
    assert old.weight.sum().item() == 4 and seen == [5, True]


@each_library
def test_a_module_takes_no_type_of_whole_numbers_from_a_tensor(library):
    with pytest.raises(TypeError, match="only accepts floating point"):
        library.nn.Linear(2, 2).to(library.zeros(1, dtype=library.int64))
