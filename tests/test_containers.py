"""Containers of modules and parameters as the lists and dictionaries they look like: as in PyTorch."""

from collections import OrderedDict

import pytest
from helpers import needs_torch, torch

import gt

LIBRARIES = [gt] if torch is None else [gt, torch]
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)


def parameters(library, **sizes):
    return library.nn.ParameterDict(OrderedDict((name, library.ones(size)) for name, size in sizes.items()))


@each_library
def test_dictionaries_of_parameters(library):
    table = parameters(library, b=1, a=2)
    assert list(table) == ["b", "a"] and list(reversed(table)) == ["a", "b"]
    assert list(library.nn.ParameterDict({"b": library.ones(1), "a": library.ones(2)})) == ["a", "b"]
    assert table.get("c") is None and table.get("c", 3) == 3 and table.get("a") is table["a"]
    assert table.setdefault("c", library.ones(3)) is table["c"] and isinstance(table["c"], library.nn.Parameter)
    assert table.setdefault("b", library.ones(7)) is table["b"]
    c = table.c
    assert table.popitem()[1] is c and table.pop("a").numel() == 2 and list(table) == ["b"]
    assert [name for name, _ in table.named_parameters()] == ["b"] and not hasattr(table, "a")
    with pytest.raises((KeyError, AttributeError)):
        table.pop("a")
    copied = table.copy()
    copied["x"] = library.ones(4)
    assert copied["b"] is table["b"] and list(table) == ["b"]
    both = table | copied
    assert list(both) == ["b", "x"] and isinstance(both, library.nn.ParameterDict)
    table |= {"y": library.ones(5)}
    assert list(table) == ["b", "y"] and len(list(table.parameters())) == 2
    assert dict(table.fromkeys(["p", "q"], 7).items()) == {"p": 7, "q": 7}
    table.clear()
    assert len(table) == 0 and not list(table.parameters())
    with pytest.raises(KeyError):
        table.popitem()


@each_library
def test_lists_of_parameters(library):
    row = library.nn.ParameterList([library.ones(1)])
    same = row
    row += [library.ones(2), "three", None]
    assert row is same and len(row) == 4 and list(row)[2:] == ["three", None] and row[-1] is None
    assert [p.numel() for p in row.parameters()] == [1, 2] and list(row.state_dict()) == ["0", "1"]
    row[0] = library.zeros(5)
    assert row[0].numel() == 5 and isinstance(row[0], library.nn.Parameter) and row[:2][1] is row[1]
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            row[wrong]
    for wrong in (3, library.ones(2)):
        with pytest.raises(TypeError, match="extend should be called with an iterable, but got"):
            library.nn.ParameterList(wrong)


@needs_torch
def test_containers_of_parameters_print_as_torch_prints():
    def made(library):
        row = library.nn.ParameterList([library.ones(2, 3), None, "text", 4])
        table = library.nn.ParameterDict(OrderedDict([("b", None), ("a", [1, 2])]))
        return row, table

    for mine, right in zip(made(gt), made(torch)):
        assert repr(mine).replace("gt.", "torch.") == repr(right)


@each_library
def test_rows_repeat_and_give_back(library):
    nn = library.nn
    row = nn.Sequential(nn.ReLU(), nn.Tanh())
    same = row
    row *= 3
    assert row is same and len(row) == 6 and row[4] is row[0] and len(row * 2) == 12
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="Non-positive multiplication factor"):
            row * wrong
    with pytest.raises(TypeError, match="unsupported operand"):
        row * 1.5
    part = row.pop(slice(1, 5))
    assert len(part) == 4 and isinstance(part, nn.Sequential) and list(row._modules) == ["0", "1"]
    with pytest.raises(IndexError, match="Index out of range: 7"):
        row.insert(7, nn.ReLU())
    modules = nn.ModuleList([nn.ReLU(), nn.Tanh(), nn.ReLU()])
    assert len(modules.pop(slice(0, 2))) == 2 and len(modules) == 1
    assert isinstance(modules.pop(-1), nn.ReLU) and len(modules) == 0


@each_library
def test_modules_with_duplicates(library):
    layer = library.nn.ReLU()
    row = library.nn.Sequential(layer, layer)
    assert len(list(row.modules())) == 2 and len(list(row.modules(remove_duplicate=False))) == 3
