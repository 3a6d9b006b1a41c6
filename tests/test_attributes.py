"""What a module's names hold, whatever is done to its dictionaries: the same in PyTorch where it can be imported."""

import copy
import pickle

import pytest
from helpers import torch

import gt

LIBRARIES = [gt] if torch is None else [gt, torch]
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)


def counter(library, **methods):
    """A module with a buffer that counts, a weight and a child; made with more methods."""

    def start(self):
        library.nn.Module.__init__(self)
        self.fn = lambda x: x
        self.register_buffer("n", library.zeros(()))
        self.weight = library.nn.Parameter(library.ones(()))
        self.inner = library.nn.Linear(1, 1)

    def forward(self):
        self.n = self.n + 1
        return (self.n * self.weight).item()

    def get(self):
        state = self.__dict__.copy()
        state.pop("fn")
        return state

    methods = {"__init__": start, "forward": forward, "__getstate__": get, **methods}
    return type("Counter", (library.nn.Module,), methods)()


def by_state(library):
    def put(self, state):
        self.__dict__.update(state)
        self.fn = lambda x: x

    return copy.deepcopy(counter(library, __setstate__=put))


def by_deepcopy(library):
    def copied(self, memo):
        new = type(self).__new__(type(self))
        new.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return new

    return copy.deepcopy(counter(library, __deepcopy__=copied))


def by_dict(library):
    original = counter(library)
    replica = type(original).__new__(type(original))
    replica.__dict__ = original.__dict__.copy()
    for kind in ("_parameters", "_buffers", "_modules"):
        setattr(replica, kind, getattr(replica, kind).copy())
    replica.__dict__["of"] = original
    return replica


def by_update(library):
    one = counter(library)
    one.__dict__.update(copy.deepcopy(counter(library)).__dict__)
    return one


WAYS = [by_state, by_deepcopy, by_dict, by_update]


@each_library
@pytest.mark.parametrize("way", WAYS)
def test_copies_go_on_with_their_own(way, library):
    module = way(library)
    assert [module() for _ in range(3)] == [1, 2, 3]
    assert module.state_dict()["n"].item() == 3
    module.weight = library.nn.Parameter(library.ones(()) * 2)
    assert module() == 8 and next(module.parameters()) is module.weight
    module.double()
    assert module.n.dtype == library.float64 and module.state_dict()["n"].dtype == library.float64
    module.inner = library.nn.Linear(2, 1)
    assert [tuple(p.shape) for p in module.parameters()] == [(), (1, 2), (1,)]
    del module.weight
    assert not hasattr(module, "weight") and len(list(module.parameters())) == 2
    if hasattr(module, "of"):
        assert module.of.n.item() == 0 and module.of.weight.item() == 1 and module.of.inner.in_features == 1


@each_library
def test_other_dictionaries_of_parts(library):
    module = counter(library)
    module._parameters = {"other": library.nn.Parameter(library.ones(2))}
    assert not hasattr(module, "weight") and module.other.tolist() == [1, 1]
    module._modules = {}
    assert not hasattr(module, "inner") and [name for name, _ in module.named_parameters()] == ["other"]
    module._buffers = {"n": library.ones(()) * 4}
    assert module.n.item() == 4
    module._buffers["more"] = library.ones(1)
    assert module.more.tolist() == [1] and list(module.state_dict()) == ["other", "n", "more"]
    library.nn.Module.__init__(module)
    assert not hasattr(module, "n") and not list(module.parameters())


def test_pickled_modules_own_their_parts():
    net = pickle.loads(pickle.dumps(gt.nn.Sequential(gt.nn.Linear(1, 1))))
    net[0].weight = gt.nn.Parameter(gt.zeros(1, 1))
    assert net[0].weight.tolist() == [[0]] and next(net.parameters()) is net[0].weight


@each_library
@pytest.mark.parametrize("name", ["forward", "train", "type", "given", "none", "x.y", ""])
def test_names_that_parameters_cannot_have(library, name):
    class Taken(library.nn.Module):
        given = property(lambda self: 1)
        none = None

    module = Taken()
    for value in (library.nn.Parameter(library.ones(1)), library.nn.Buffer(library.ones(1))):
        with pytest.raises(KeyError, match="name can|already exists"):
            setattr(module, name, value)
    assert not list(module.parameters()) and not list(module.buffers())


def conversions(library):
    """Modules with an own `_apply`, as PyTorch's documentation of 'tensors that are no buffers' suggests."""

    class Own(library.nn.Module):
        def __init__(self, inner=None):
            super().__init__()
            self.inner, self.extra = inner, library.ones(1)

        def _apply(self, fn):
            super()._apply(fn)
            self.extra = fn(self.extra)
            return self

    shared = library.nn.Linear(1, 1)
    net = library.nn.Sequential(Own(shared), Own(Own()), library.nn.ParameterList([shared.weight])).double()
    assert net[0].inner.weight is net[2][0]
    return [net[0].extra.dtype, net[1].inner.extra.dtype, net[2][0].dtype]


@each_library
def test_own_conversions(library):
    assert conversions(library) == [library.float64] * 3
    inner = library.nn.Sequential(library.nn.Linear(1, 1))
    inner._apply(lambda t: t.double(), recurse=False)
    assert inner[0].weight.dtype == library.float32


@each_library
def test_what_cannot_take_a_name_says_so(library):
    module = counter(library)
    for name, text in (
        ("weight", r"cannot assign 'int' as parameter 'weight' \(\w+.nn.Parameter or None expected\)"),
        ("inner", r"cannot assign 'int' as child module 'inner' \(\w+.nn.Module or None expected\)"),
        ("n", r"cannot assign 'int' as buffer 'n' \(\w+.nn.Buffer, \w+.Tensor or None expected\)"),
    ):
        with pytest.raises(TypeError, match=text):
            setattr(module, name, 3)
