"""Signals that speak of modules: patterns over the names of parameters, and stages of a pipeline.

Under such a signal, the module that is called first gets its parameters laid out, once; `apply` does so by hand.
"""

import os
import sys
import threading
import time

from gt import _gt


class Signals(threading.local):
    """What the modules of this thread have to know."""

    # True while a signal is entered that has something to say about modules.
    speak = False
    # How many such signals are entered, by all threads: calls of modules look no further while there is none.
    anywhere = 0
    _count = threading.Lock()

    def __init__(self):
        self._names = []
        # How many signals were entered where each context began.
        self.begun = []
        self._depth = 0

    def depth(self):
        """How many signals are entered."""
        return len(self._names)

    def entered(self, name):
        speaks = _gt._signal_patterns(name) is not None
        self._names.append(name if speaks else None)
        self.speak = self.speak or speaks
        self._note(int(speaks))

    def left(self):
        self._note(-int(self._names.pop() is not None))
        self.speak = any(self._names)

    @staticmethod
    def _note(change):
        with Signals._count:
            Signals.anywhere += change

    @staticmethod
    def _apply(module, name):
        again, start = "_laid_out" in module.__dict__, time.perf_counter()
        try:
            apply(module, name)
        except ValueError:
            # A file that was wrong may have been set right since.
            version = _gt._signal_version()
            _gt._signal_poll()
            if _gt._signal_version() == version:
                raise
            apply(module, name)
        if again and os.environ.get("GT_VERBOSE", "").strip() == "1":
            _gt.synchronize()
            parameters = list(module.parameters())
            size, ms = sum(p.nbytes for p in parameters) / 1e6, (time.perf_counter() - start) * 1e3
            print(
                f"gt: signal {name!r}: {len(parameters)} parameters of {size:.1f} MB lie as it says, {ms:.0f} ms",
                file=sys.stderr,
            )

    def call(self, module, args, kwargs):
        """Calls a module: the outermost one is laid out first, and one that has a signal runs in it."""
        if self.speak and not self._depth:
            name = next(name for name in reversed(self._names) if name)
            if module.__dict__.get("_laid_out") != (name, _gt._signal_version()):
                self._apply(module, name)
        self._depth += 1
        own = module.__dict__.get("_signal")
        try:
            if own is None:
                return module._call_with_hooks(args, kwargs)
            _gt._signal_enter(own)
            try:
                return module._call_with_hooks(args, kwargs)
            finally:
                _gt._signal_exit(own)
        finally:
            self._depth -= 1


signals = Signals()


def apply(module, name=None):
    """Lays out the parameters of a module as the patterns of a signal say, in place and for good, and notes the stages
    of its pipeline. The name is that of the innermost context if none is given. Returns the module."""
    name = name or _gt._signal_name()
    if name is None:
        raise ValueError("signal.apply: name a signal, or call it inside a context")
    if not hasattr(module, "named_modules"):
        raise TypeError(f"signal.apply: expected a module, got {type(module).__name__}; tensors take `signal.tensor`")
    said = _gt._signal_patterns(name)
    if said is None:
        module.__dict__["_laid_out"] = (name, _gt._signal_version())
        return module
    rules, patterns, stages = said
    homes = _stages(module, name, *stages) if stages else {}
    for path, _ in module.named_modules():
        for pattern, target in patterns:
            if _gt._signal_fits(pattern, path):
                homes[path] = target
                break
    for path, inner in module.named_modules():
        inner.__dict__.pop("_signal", None)
        if path in homes:
            inner.__dict__["_signal"] = homes[path]
            inner._hooked = True
    for path, parameter in module.named_parameters():
        _lay_out(parameter, path, name, rules, homes)
    _gt._signal_laid_out(name)
    module.__dict__["_laid_out"] = (name, _gt._signal_version())
    return module


def _lay_out(parameter, path, name, rules, homes):
    """A rule of the stage comes first, then one of the signal, then the stage itself."""
    home = _home(path, homes)
    for signal in (home, name if rules else None):
        if signal and _gt._signal_apply(parameter, signal, path):
            return
    if home:
        _gt._signal_apply(parameter, home)


def _home(path, homes):
    """The signal of the innermost module with one that a tensor lies in."""
    while path:
        path = path.rpartition(".")[0]
        if path in homes:
            return homes[path]
    return None


def _stages(module, name, count, split, place):
    """The signal of every layer of a pipeline, and of what lies before and after the layers."""
    modules = dict(module.named_modules())
    if split is None:
        from gt.nn.containers import ModuleList, Sequential

        lists = [path for path, m in modules.items() if isinstance(m, (ModuleList, Sequential))]
        if not lists:
            raise ValueError(f"{place}: signal {name!r}: no list of layers to split: name one with `split`")
        split = max(lists, key=lambda path: len(modules[path]._modules))
    if split not in modules:
        known = ", ".join(path for path, m in modules.items() if path and m._modules) or "none"
        raise ValueError(f"{place}: signal {name!r}: split: there is no module {split!r} with layers; there is {known}")
    layers = list(modules[split]._modules)
    homes = {}
    for i, layer in enumerate(layers):
        homes[f"{split}.{layer}" if split else layer] = _gt._signal_stage(name, i, len(layers))
    first, last = _gt._signal_stage(name, 0, 1), _gt._signal_stage(name, count - 1, count)
    before = True
    for path, inner in modules.items():
        before = before and path != split
        around = path == split or split.startswith(f"{path}.") or path == ""
        inside = not split or path.startswith(f"{split}.")
        outer = _home(path, homes)
        # What has no parameters, as tables of angles, runs where it is used.
        if not around and not inside and outer is None and any(True for _ in inner.parameters()):
            homes[path] = first if before else last
    return homes
