"""Modules that hold modules or parameters."""

from collections import OrderedDict

from gt._gt import Tensor
from gt.nn.module import Module
from gt.nn.parameter import Parameter


def _indent(text):
    return text.replace("\n", "\n  ")


class _Row(Module):
    """What sequences of modules share: they are numbered from 0."""

    def append(self, module):
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules):
        for module in modules:
            self.append(module)
        return self

    def insert(self, index, module):
        modules = list(self)
        modules.insert(index, module)
        self._fill(modules)
        return self

    def pop(self, index=-1):
        module = self[index]
        del self[index]
        return module

    def _fill(self, modules):
        self._modules.clear()
        self.extend(modules)

    def _key(self, index):
        keys = list(self._modules)
        if not -len(keys) <= index < len(keys):
            raise IndexError(f"index {index} is out of range")
        return keys[index]

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def __setitem__(self, index, module):
        setattr(self, self._key(index), module)

    def __delitem__(self, index):
        modules = list(self)
        del modules[index]
        self._fill(modules)


class Sequential(_Row):
    """Modules, each called with what the one before gave."""

    def __init__(self, *modules):
        super().__init__()
        named = modules[0].items() if len(modules) == 1 and isinstance(modules[0], dict) else enumerate(modules)
        for name, module in named:
            self.add_module(str(name), module)

    def forward(self, input):
        for module in self.__dict__["_modules"].values():
            input = module(input)
        return input

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)(dict(list(self._modules.items())[index]))
        return self._modules[self._key(index)]

    def __add__(self, other):
        return Sequential(*self, *other)

    def __iadd__(self, other):
        return self.extend(other)

    def insert(self, index, module):
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}")
        return super().insert(index, module)

    def _more(self, times):
        """The modules that come after this many times as many."""
        if not isinstance(times, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(times)}")
        if times <= 0:
            raise ValueError(f"Non-positive multiplication factor {times} for {type(self)}")
        return list(self) * (times - 1)

    def __mul__(self, times):
        more = self._more(times)
        return Sequential(*self, *more)

    __rmul__ = __mul__

    def __imul__(self, times):
        return self.extend(self._more(times))


class ModuleList(_Row):
    """A list of modules."""

    def __init__(self, modules=None):
        super().__init__()
        self.extend(modules or ())

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return self._modules[self._key(index)]

    def __iadd__(self, modules):
        return self.extend(modules)

    def __add__(self, other):
        return ModuleList([*self, *other])

    def __repr__(self):
        """Equal modules that follow one another are shown once, with their number."""
        shown = [repr(module) for module in self]
        if not shown:
            return f"{self._get_name()}()"
        runs = [[0, 0, shown[0]]]
        for i, text in enumerate(shown[1:], 1):
            if text == runs[-1][2]:
                runs[-1][1] = i
            else:
                runs.append([i, i, text])
        lines = [
            f"({first}): {_indent(text)}"
            if first == last
            else f"({first}-{last}): {last - first + 1} x {_indent(text)}"
            for first, last, text in runs
        ]
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules=None):
        super().__init__()
        self.update(modules or {})

    def update(self, modules):
        for name, module in modules.items() if hasattr(modules, "items") else modules:
            self[name] = module

    def pop(self, name):
        module = self[name]
        del self[name]
        return module

    def clear(self):
        self._modules.clear()

    def __getitem__(self, name):
        return self._modules[name]

    def __setitem__(self, name, module):
        self.add_module(name, module)

    def __delitem__(self, name):
        del self._modules[name]

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules)

    def __contains__(self, name):
        return name in self._modules

    def keys(self):
        return self._modules.keys()

    def items(self):
        return self._modules.items()

    def values(self):
        return self._modules.values()


def _parameter(value):
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _shown(items, kind):
    """What there is by name, kind and size, one a line."""
    lines = []
    for name, value in items:
        if isinstance(value, Tensor):
            size = "x".join(str(n) for n in value.shape)
            what = "Parameter" if isinstance(value, Parameter) else "Tensor"
            lines.append(f"  ({name}): {what} containing: [{kind(value)} of size {size}]")
        else:
            lines.append(f"  ({name}): Object of type: {type(value).__name__}")
    return "\n".join(lines)


class ParameterList(Module):
    """A list of parameters, and of what else it is given."""

    def __init__(self, values=None):
        super().__init__()
        self._size = 0
        self.extend(() if values is None else values)

    def extra_repr(self):
        return _shown(enumerate(self), lambda p: p.dtype)

    def append(self, value):
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values):
        if isinstance(values, Tensor) or not hasattr(values, "__iter__"):
            raise TypeError(f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}")
        for value in values:
            self.append(value)
        return self

    __iadd__ = extend

    def _name(self, index):
        if not -self._size <= index < self._size:
            raise IndexError(f"index {index} is out of range")
        return str(range(self._size)[index])

    def __len__(self):
        return self._size

    def __iter__(self):
        return (self[i] for i in range(self._size))

    def __getitem__(self, index):
        return type(self)(list(self)[index]) if isinstance(index, slice) else getattr(self, self._name(index))

    def __setitem__(self, index, value):
        setattr(self, self._name(index), _parameter(value))


class ParameterDict(Module):
    """Parameters, and what else it is given, by name. Of a plain dictionary the names are sorted, as in PyTorch."""

    def __init__(self, parameters=None):
        super().__init__()
        self._keys = {}
        self.update(() if parameters is None else parameters)

    def extra_repr(self):
        return _shown(self.items(), Tensor.type)

    def update(self, values):
        if hasattr(values, "items"):
            items = values.items()
            values = items if isinstance(values, (OrderedDict, ParameterDict)) else sorted(items)
        for name, value in values:
            self[name] = value

    def __getitem__(self, name):
        if name not in self._keys:
            raise KeyError(name)
        return getattr(self, name)

    def __setitem__(self, name, value):
        if not isinstance(name, str):
            raise TypeError(f"ParameterDict: a key is a string, got {type(name).__name__}")
        setattr(self, name, _parameter(value))
        self._keys[name] = None

    def __delitem__(self, name):
        del self._keys[name]
        delattr(self, name)

    def pop(self, name):
        value = self[name]
        del self[name]
        return value

    def popitem(self):
        """The last name and its value, taken out."""
        name = next(reversed(self), None)
        if name is None:
            raise KeyError("popitem(): the dictionary is empty")
        return name, self.pop(name)

    def get(self, name, default=None):
        return self[name] if name in self else default

    def setdefault(self, name, default=None):
        if name not in self:
            self[name] = default
        return self[name]

    def clear(self):
        for name in list(self):
            del self[name]

    def copy(self):
        """Another dictionary of the same values."""
        return ParameterDict(self)

    def fromkeys(self, names, default=None):
        """Another dictionary, with one value for all names."""
        return ParameterDict((name, default) for name in names)

    def __or__(self, other):
        new = self.copy()
        new.update(other)
        return new

    def __ror__(self, other):
        new = ParameterDict(other)
        new.update(self)
        return new

    def __ior__(self, other):
        self.update(other)
        return self

    def __len__(self):
        return len(self._keys)

    def __iter__(self):
        return iter(self._keys)

    def __reversed__(self):
        return reversed(self._keys)

    def __contains__(self, name):
        return name in self._keys

    def keys(self):
        return self._keys.keys()

    def items(self):
        return ((name, self[name]) for name in self._keys)

    def values(self):
        return (self[name] for name in self._keys)
