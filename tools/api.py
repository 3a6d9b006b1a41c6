"""Writes docs/api.md: every public name of GT with its signature and first sentence, and what PyTorch has besides.

python tools/api.py [FILE]
"""

import inspect
import pathlib
import sys

import gt

ROOT = pathlib.Path(__file__).resolve().parents[1]
PARTS = [
    ("gt", "Functions", "gt"),
    ("gt.Tensor", "Methods of tensors", "t"),
    ("gt.nn", "gt.nn", "gt.nn"),
    ("gt.nn.functional", "gt.nn.functional", "F"),
    ("gt.nn.utils.parametrize", "gt.nn.utils.parametrize", "gt.nn.utils.parametrize"),
    ("gt.nn.utils.parametrizations", "gt.nn.utils.parametrizations", "gt.nn.utils.parametrizations"),
    ("gt.nn.utils.prune", "gt.nn.utils.prune", "gt.nn.utils.prune"),
    ("gt.nn.utils.rnn", "gt.nn.utils.rnn", "gt.nn.utils.rnn"),
    ("gt.optim", "gt.optim", "gt.optim"),
    ("gt.optim.lr_scheduler", "gt.optim.lr_scheduler", "gt.optim.lr_scheduler"),
    ("gt.optim.swa_utils", "gt.optim.swa_utils", "gt.optim.swa_utils"),
    ("gt.linalg", "gt.linalg", "gt.linalg"),
    ("gt.amp", "gt.amp", "gt.amp"),
    ("gt.autograd", "gt.autograd", "gt.autograd"),
    ("gt.autograd.functional", "gt.autograd.functional", "gt.autograd.functional"),
    ("gt.func", "gt.func", "gt.func"),
    ("gt.distributions", "gt.distributions", "gt.distributions"),
    ("gt.utils.data", "gt.utils.data", "gt.utils.data"),
    ("gt.testing", "gt.testing", "gt.testing"),
    ("gt.debug", "gt.debug", "gt.debug"),
    ("gt.profiler", "gt.profiler", "gt.profiler"),
]


def resolve(path):
    found = gt
    for name in path.split(".")[1:]:
        found = getattr(found, name)
    return found


def names(path):
    """Public callables of a module or class, its own ones only."""
    place = resolve(path)
    public = getattr(place, "__all__", None) if not inspect.isclass(place) else None
    for name in sorted(public or dir(place), key=str.lower):
        if name.startswith("_") or name != name.strip("_"):
            continue
        thing = getattr(place, name, None)
        if inspect.ismodule(thing) or not callable(thing):
            continue
        home = getattr(thing, "__module__", None) or "gt"
        if not inspect.isclass(place) and not home.startswith("gt"):
            continue
        yield name, thing


def signature(thing, method):
    try:
        text = str(inspect.signature(thing)).replace("Ellipsis", "...")
    except (TypeError, ValueError):
        return "(...)"
    # What is a method of tensors is a function too, whose first argument is the tensor.
    first = "" if method else "input, "
    for own in ("(self, /, ", "(self, /", "(self, ", "(self"):
        if text.startswith(own):
            return ("(" + first + text[len(own) :]).replace(", )", ")")
    return text


def sentence(thing):
    text = inspect.getdoc(thing) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return first.split(". ")[0].rstrip(".").replace("|", "\\|")


def inherited(thing):
    """True for a docstring that only repeats what Python says of every class."""
    return not sentence(thing) or sentence(thing).startswith("Initialize self")


def page():
    lines = [
        "# The API",
        "",
        "Made by `python tools/api.py` from the package itself. Names, arguments and results are PyTorch's unless",
        "the text says otherwise; [Coming from PyTorch](pytorch.md) lists the differences.",
    ]
    for path, title, prefix in PARTS:
        rows = list(names(path))
        count = f"{len(rows)} name{'s' if len(rows) > 1 else ''}."
        lines += ["", f"## {title}", "", count, "", "| name | what it does |", "|---|---|"]
        for name, thing in rows:
            call = f"{prefix}.{name}{signature(thing, path == 'gt.Tensor')}".replace("|", "\\|")
            lines.append(f"| `{call}` | {'as in PyTorch' if inherited(thing) else sentence(thing)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "api.md"
    target.write_text(page())
