"""Hooks of modules that return the wrong thing, raise, or meet what they cannot see: as in PyTorch."""

import collections
import gc
import weakref

import pytest
from helpers import torch

import gt

LIBRARIES = [gt] if torch is None else [gt, torch]
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)


@each_library
@pytest.mark.parametrize("wrong", [(), (None,) * 3, [None, None]])
def test_backward_hooks_return_as_many_gradients_as_there_are(library, wrong):
    for register, what in (
        ("register_full_backward_hook", "Backward hook returned an invalid number of grad_input"),
        ("register_full_backward_pre_hook", "Backward pre hook returned an invalid number of grad_output"),
    ):
        layer = library.nn.Linear(2, 2)
        getattr(layer, register)(lambda *args: wrong)
        x = library.ones(1, 2, requires_grad=True)
        with pytest.raises(RuntimeError, match=f"{what}, got {len(wrong)}, but expected 1"):
            layer(x).sum().backward()


@each_library
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_backward_hooks_change_nothing_where_no_input_has_a_gradient(library):
    layer = library.nn.Linear(1, 1)
    layer.register_full_backward_hook(lambda m, grad_input, grad_output: (grad_output[0],))
    with pytest.raises(RuntimeError, match="should always return None or None for all"):
        layer(library.ones(1, 1)).sum().backward()


@each_library
def test_backward_hooks_see_none_between_tensors(library):
    Pair = collections.namedtuple("Pair", "one number two")

    class Three(library.nn.Module):
        def forward(self, name, x):
            return Pair(x * 2, 5, x * 3)

    module, seen = Three(), []
    module.register_full_backward_pre_hook(lambda m, out: seen.append(["before", *out]))
    module.register_full_backward_hook(lambda m, into, out: seen.append([*into, *out]))
    x = library.ones((), requires_grad=True)
    result = module("name", x)
    (result.one + result.two).backward()
    plain = [[g if g is None or isinstance(g, str) else g.item() for g in row] for row in seen]
    assert plain == [["before", 1, None, 1], [None, 5, 1, None, 1]] and x.grad.item() == 5


@each_library
@pytest.mark.parametrize("kind", ["list", "dict"])
def test_backward_hooks_do_not_see_into_lists(library, kind):
    class Module(library.nn.Module):
        def forward(self, x):
            return [x * 2] if kind == "list" else {0: x * 2}

    module, seen = Module(), []
    module.register_full_backward_hook(lambda *args: seen.append(args))
    x = library.ones((), requires_grad=True)
    with pytest.warns(UserWarning, match=f"should be a Tensor or a tuple of Tensors.*{kind}"):
        result = module(x)
    result[0].backward()
    assert seen == [] and x.grad.item() == 2


def test_backward_hooks_hold_no_values():
    class Through(gt.nn.Module):
        def forward(self, x):
            return x + 1

    module = Through()
    module.register_full_backward_hook(lambda *args: None)
    x = gt.ones(2, requires_grad=True) * 1
    seen = weakref.ref(x)
    result = module(x)
    del x
    gc.collect()
    assert seen() is None and result.tolist() == [2, 2]


class Unhashable:
    __hash__ = None

    def __init__(self, seen):
        self.seen = seen

    def __call__(self, *args):
        self.seen.append(args)


@each_library
def test_each_registration_of_a_hook_counts(library):
    layer, seen = library.nn.Linear(1, 1), []
    hook = Unhashable(seen)
    for _ in range(2):
        layer.register_forward_hook(hook, always_call=True)
    layer(library.ones(1, 1))
    assert len(seen) == 2
    with pytest.raises(RuntimeError):
        layer(library.ones(1, 7))
    assert len(seen) == 4


@each_library
def test_a_hook_does_not_hide_the_error_of_its_module(library):
    class Fails(library.nn.Module):
        def forward(self):
            raise KeyError("of the module")

    module, seen = Fails(), []

    def wrong(module, args, output):
        seen.append("wrong")
        raise ValueError("of the hook")

    module.register_forward_hook(wrong, always_call=True)
    module.register_forward_hook(lambda *args: seen.append("last"), always_call=True)
    with pytest.warns(UserWarning, match="silenced.*of the hook"), pytest.raises(KeyError, match="of the module"):
        module()
    assert seen == ["wrong", "last"]


@each_library
@pytest.mark.parametrize("changed", [(1,), [(1,), {}], 3])
def test_hooks_with_keywords_return_both(library, changed):
    module = library.nn.Identity()
    module.register_forward_pre_hook(lambda m, args, kwargs: changed, with_kwargs=True)
    with pytest.raises(RuntimeError, match=r"must return None or a tuple of \(new_args, new_kwargs\), but got"):
        module(1)
