"""Where a module keeps what belongs to it."""

import weakref

KINDS = ("_parameters", "_buffers", "_modules")


class Home(dict):
    """What a module has of one kind, by name.

    Each stands among the module's plain attributes too: using a layer or a weight is one look into a dictionary then,
    where a miss there would raise, catch and look again. Whoever changes this dictionary changes the attributes.
    """

    __slots__ = ("_module",)

    def __init__(self, module, items=()):
        super().__init__()
        # Not the module itself: it goes as soon as nobody uses it, not when cycles are collected.
        self._module = weakref.ref(module)
        self.update(items)

    def _show(self, name, value):
        module = self._module()
        # What the class says comes first, as it does where attributes are looked up one after the other.
        if module is not None and not hasattr(type(module), name):
            module.__dict__[name] = value

    def _hide(self, name):
        module = self._module()
        if module is not None:
            module.__dict__.pop(name, None)

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        self._show(name, value)

    def __delitem__(self, name):
        super().__delitem__(name)
        self._hide(name)

    def setdefault(self, name, default=None):
        if name not in self:
            self[name] = default
        return self[name]

    def update(self, *others, **named):
        for name, value in dict(*others, **named).items():
            self[name] = value

    def __ior__(self, other):  # type: ignore[misc]
        self.update(other)
        return self

    def pop(self, name, *default):
        if name not in self:
            return super().pop(name, *default)
        value = super().pop(name)
        self._hide(name)
        return value

    def popitem(self):
        name, value = super().popitem()
        self._hide(name)
        return name, value

    def clear(self):
        for name in list(self):
            del self[name]

    def __reduce__(self):
        """Copied and pickled without its module, which makes homes again (`settle`)."""
        return dict, (dict(self),)


class Kept:
    """The home of one kind as an attribute of modules: always the module's own.

    A copied `__dict__`, or a `__setstate__` of a subclass, brings plain dictionaries and homes of other modules.
    """

    def __init__(self, kind):
        self.kind = kind

    def __get__(self, module, owner=None):
        if module is None:
            return self
        home = module.__dict__.get(self.kind)
        if home is None:
            raise AttributeError(f"{self.kind}: call Module.__init__() first")
        if type(home) is not Home or home._module() is not module:
            home = module.__dict__[self.kind] = Home(module, home)
        return home

    def __set__(self, module, items):
        for name in module.__dict__.get(self.kind, ()):
            module.__dict__.pop(name, None)
        module.__dict__[self.kind] = Home(module, items)


def settle(module, state):
    """Gives a module the attributes of a copied or pickled one."""
    parts = module.__dict__
    parts.update(state)
    for kind in KINDS:
        if kind in parts:
            parts[kind] = Home(module, parts[kind])
