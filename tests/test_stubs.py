"""python/gt/_gt.pyi says what the core has. To make it anew: python crates/gt-py/make_stubs.py"""

import ast
import inspect
import pathlib

import pytest

import gt
from gt import _gt

TREE = ast.parse((pathlib.Path(gt.__file__).parent / "_gt.pyi").read_text())


def parameters(function):
    a = function.args
    names = [x.arg for x in (*a.posonlyargs, *a.args)] + [x.arg for x in a.kwonlyargs]
    return [n for n in names if n != "self"] + [x.arg for x in (a.vararg, a.kwarg) if x]


def of_runtime(function):
    names = inspect.signature(function).parameters
    fixed = [n for n, p in names.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [n for n in fixed if n not in ("self", "$self")] + [n for n in names if n not in fixed]


def check_functions(owner, body):
    told = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    for name, function in vars(owner).items():
        if (name.startswith("__") and name.endswith("__")) or not callable(function) or inspect.isclass(function):
            continue
        assert name in told, f"{owner.__name__}.{name} is missing from the stub"
        assert sorted(parameters(told[name])) == sorted(of_runtime(function)), f"{owner.__name__}.{name}"
    for name, node in told.items():
        if not name.startswith("__"):
            assert hasattr(owner, name), f"the stub has {owner.__name__}.{name}, the core has not"
            assert isinstance(node, ast.FunctionDef)


def test_functions_are_told():
    check_functions(_gt, TREE.body)


@pytest.mark.parametrize("node", [n for n in TREE.body if isinstance(n, ast.ClassDef)], ids=lambda n: n.name)
def test_classes_are_told(node):
    owner = getattr(_gt, node.name)
    if not node.name.endswith("Error"):
        check_functions(owner, node.body)


def test_names_are_told():
    told = {n.name for n in TREE.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    told |= {n.target.id for n in TREE.body if isinstance(n, ast.AnnAssign)}
    missing = {n for n in vars(_gt) if not n.startswith("__")} - told
    assert not missing
