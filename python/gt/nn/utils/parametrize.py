"""Parameters that are computed whenever they are used: a module makes a weight out of the tensor that is trained."""

import copy
from contextlib import contextmanager

from gt._gt import Tensor
from gt.autograd.grad_mode import no_grad
from gt.nn.containers import ModuleDict, ModuleList
from gt.nn.parameter import Parameter

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "type_before_parametrizations",
]

# How many `cached` blocks are open, and what was computed since the first of them began.
_open = 0
_computed: dict = {}


@contextmanager
def cached():
    """Inside, each parametrized tensor is computed once."""
    global _open
    _open += 1
    try:
        yield
    finally:
        _open -= 1
        if not _open:
            _computed.clear()


def _check_alike(made, before, shapes):
    if not isinstance(made, Tensor):
        raise ValueError(f"A parametrization must return a tensor. Got {type(made).__name__}.")
    for what, old, new in (("dtype", before.dtype, made.dtype), ("shape", list(before.shape), list(made.shape))):
        if old != new and (what == "dtype" or shapes):
            raise ValueError(
                f"Registering a parametrization may not change the {what} of the tensor, unless `unsafe=True`: "
                f"expected {old}, got {new}"
            )


class ParametrizationList(ModuleList):
    """What computes one tensor: the modules, the first of which takes `original` (or `original0`, `original1` and so
    on, if its `right_inverse` gives several tensors)."""

    def __init__(self, modules, original, unsafe=False):
        modules = list(modules)
        if not modules:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        with no_grad():
            new = self._inverse(original)
        self.is_tensor = isinstance(new, Tensor)
        if not self.is_tensor and not isinstance(new, (list, tuple)):
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...), got "
                f"{type(new).__name__}"
            )
        self.ntensors = 1 if self.is_tensor else len(new)
        trained = isinstance(original, Parameter)
        if self.is_tensor:
            if original.dtype != new.dtype:
                raise ValueError(
                    "When `right_inverse` outputs one tensor, it may not change the dtype: expected "
                    f"{original.dtype}, got {new.dtype}"
                )
            with no_grad():
                original.data = new
            self._keep("original", original, trained)
        else:
            for i, part in enumerate(new):
                if not isinstance(part, Tensor):
                    raise ValueError(
                        f"'right_inverse' must return a Tensor or a Sequence of tensors, got element {i} of type "
                        f"{type(part).__name__}"
                    )
                part = Parameter(part, original.requires_grad) if trained else part
                self._keep(f"original{i}", part, trained)
        if not unsafe:
            _check_alike(self(), original, self.is_tensor)

    def _keep(self, name, tensor, trained):
        (self.register_parameter if trained else self.register_buffer)(name, tensor)

    def _inverse(self, value):
        for module in reversed(list(self)):
            inverse = getattr(module, "right_inverse", None)
            if inverse is not None:
                try:
                    value = inverse(value)
                except NotImplementedError:
                    pass
        return value

    def _originals(self):
        return [self.original] if self.is_tensor else [getattr(self, f"original{i}") for i in range(self.ntensors)]

    @no_grad()
    def right_inverse(self, value):
        """Sets the originals so that `value` is what they make."""
        new = self._inverse(value)
        if isinstance(new, Tensor) != self.is_tensor or (not self.is_tensor and len(new) != self.ntensors):
            raise ValueError(f"'right_inverse' must return {self.ntensors} tensors, as when it was registered")
        for kept, part in zip(self._originals(), [new] if self.is_tensor else new):
            if kept.dtype != part.dtype:
                raise ValueError(f"'right_inverse' may not change the dtype: expected {kept.dtype}, got {part.dtype}")
            kept.data = part

    def forward(self):
        first, *others = self
        value = first(*self._originals())
        for module in others:
            value = module(value)
        return value


class _Parametrized:
    """The part of a module's class that says how copies are made of one with computed tensors."""

    def __deepcopy__(self, memo):
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__setstate__(copy.deepcopy(self.__dict__, memo))
        return new

    def __getstate__(self):
        raise RuntimeError(
            "Serialization of parametrized modules is only supported through state_dict(): save that, and load it into "
            "a module that is parametrized alike"
        )


def _parametrize_class(module):
    """Gives a module a class of its own, which can have properties."""
    old = type(module)
    object.__setattr__(module, "__class__", type(f"Parametrized{old.__name__}", (_Parametrized, old), {}))
    module.parametrizations = ModuleDict()


def _computes(name):
    """A property that computes a tensor."""

    def get(self):
        maker = self.parametrizations[name]
        if not _open:
            return maker()
        # The maker too, so that nothing else gets its number while the block is open.
        if id(maker) not in _computed:
            _computed[id(maker)] = (maker, maker())
        return _computed[id(maker)][1]

    def set_(self, value):
        self.parametrizations[name].right_inverse(value)

    return property(get, set_)


def register_parametrization(module, tensor_name, parametrization, *, unsafe=False):
    """From now on `module.tensor_name` is `parametrization(original)`; those registered later take what came before.
    Its `right_inverse`, if it has one, says which original a value has that is assigned."""
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        made = module.parametrizations[tensor_name]
        if not unsafe:
            before = getattr(module, tensor_name)
            _check_alike(parametrization(before), before, True)
            if hasattr(parametrization, "right_inverse"):
                with no_grad():
                    made.right_inverse(before)
        made.append(parametrization)
        made.unsafe |= unsafe
        return module
    for home in (module._parameters, module._buffers):
        if home.get(tensor_name) is not None:
            made = ParametrizationList([parametrization], home[tensor_name], unsafe)
            del home[tensor_name]
            if not is_parametrized(module):
                _parametrize_class(module)
            setattr(type(module), tensor_name, _computes(tensor_name))
            module.parametrizations[tensor_name] = made
            return module
    raise ValueError(
        f"Module '{module._get_name()}' does not have a parameter, a buffer, or a parametrized element with name "
        f"'{tensor_name}'"
    )


def is_parametrized(module, tensor_name=None):
    """Whether a module computes a tensor, or the one of a name."""
    made = module._modules.get("parametrizations")
    if not isinstance(made, ModuleDict):
        return False
    return len(made) > 0 if tensor_name is None else tensor_name in made


def remove_parametrizations(module, tensor_name, leave_parametrized=True):
    """Makes a computed tensor a plain one again: with the value it has now, or as its original."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    made = module.parametrizations[tensor_name]
    if leave_parametrized:
        with no_grad():
            value = getattr(module, tensor_name).detach().clone()
        if made.is_tensor:
            made.original.data = value
            value = made.original
        elif all(isinstance(part, Parameter) for part in made._originals()):
            value = Parameter(value, made.original0.requires_grad)
    elif made.is_tensor:
        value = made.original
    else:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a "
            "sequence of tensors."
        )
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    (module.register_parameter if isinstance(value, Parameter) else module.register_buffer)(tensor_name, value)
    if not is_parametrized(module):
        del module.parametrizations
        object.__setattr__(module, "__class__", type_before_parametrizations(module))
    return module


def type_before_parametrizations(module):
    """The class that a module had before the first parametrization."""
    return type(module).__bases__[1] if isinstance(module, _Parametrized) else type(module)
