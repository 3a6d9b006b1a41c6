"""Modules that hold modules or parameters."""

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
        modules = list(self)
        module = modules.pop(index)
        self._fill(modules)
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

    def __mul__(self, times):
        return Sequential(*list(self) * times)

    __rmul__ = __mul__


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


def _shown(parameters, kind):
    """Parameters by name, kind and size, one a line."""
    for name, p in parameters:
        size = "x".join(str(n) for n in p.shape)
        yield f"  ({name}): Parameter containing: [{kind(p)} of size {size}]"


class ParameterList(Module):
    """A list of parameters."""

    def extra_repr(self):
        return "\n".join(_shown(self._parameters.items(), lambda p: p.dtype))

    def __init__(self, values=None):
        super().__init__()
        self.extend(values or ())

    def append(self, value):
        self.register_parameter(str(len(self)), _parameter(value))
        return self

    def extend(self, values):
        for value in values:
            self.append(value)
        return self

    def __len__(self):
        return len(self._parameters)

    def __iter__(self):
        return iter(self._parameters.values())

    def __getitem__(self, index):
        values = list(self._parameters.values())
        return type(self)(values[index]) if isinstance(index, slice) else values[index]

    def __setitem__(self, index, value):
        setattr(self, str(range(len(self))[index]), _parameter(value))


class ParameterDict(Module):
    """Parameters by name."""

    def extra_repr(self):
        return "\n".join(_shown(self._parameters.items(), Tensor.type))

    def __init__(self, values=None):
        super().__init__()
        self.update(values or {})

    def update(self, values):
        for name, value in values.items() if hasattr(values, "items") else values:
            self[name] = value

    def __getitem__(self, name):
        return self._parameters[name]

    def __setitem__(self, name, value):
        self.register_parameter(name, _parameter(value))

    def __delitem__(self, name):
        del self._parameters[name]

    def __len__(self):
        return len(self._parameters)

    def __iter__(self):
        return iter(self._parameters)

    def __contains__(self, name):
        return name in self._parameters

    def keys(self):
        return self._parameters.keys()

    def items(self):
        return self._parameters.items()

    def values(self):
        return self._parameters.values()
