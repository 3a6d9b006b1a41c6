"""Modules: things with parameters, as in PyTorch."""

from gt._gt import Tensor
from gt._hooks import Hooks
from gt.autograd.grad_mode import no_grad
from gt.nn import hooks
from gt.nn.homes import KINDS, Kept, settle
from gt.nn.parameter import Buffer, Parameter
from gt.nn.state import State
from gt.signal import modules as _said

_Signals = _said.Signals

# What a name holds that cannot become something else, and what it can be.
_TAKES = {
    "_parameters": ("parameter", "gt.nn.Parameter or None"),
    "_modules": ("child module", "gt.nn.Module or None"),
    "_buffers": ("buffer", "gt.nn.Buffer, gt.Tensor or None"),
}


class Module(State, hooks.Hooked):
    """Base of all networks: subclass it, make parameters and modules in `__init__`, and write `forward`."""

    training = True
    _parameters, _buffers, _modules = (Kept(kind) for kind in KINDS)

    def __init__(self):
        set_ = super().__setattr__
        set_("training", True)
        for kind in KINDS:
            set_(kind, {})
        set_("_transient", set())
        for kind in hooks.KINDS:
            set_(kind, Hooks())
        # Calls look no further while nobody has registered a hook.
        set_("_hooked", False)

    def forward(self, *args, **kwargs):
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args, **kwargs):
        if self._hooked or _Signals.anywhere:
            return self._call_watched(args, kwargs)
        return self.forward(*args, **kwargs)

    # What belongs to the module.

    def __setattr__(self, name, value):
        parts = self.__dict__
        if isinstance(value, (Parameter, Module, Buffer)):
            if "_parameters" not in parts:
                raise AttributeError("cannot assign parameters or modules before Module.__init__() call")
            if isinstance(value, Parameter):
                self._forget(name, "_parameters")
                self.register_parameter(name, value)
            elif isinstance(value, Module):
                self._forget(name, "_modules")
                self._modules[name] = value
            else:
                self._forget(name, "_buffers")
                self.register_buffer(name, value, getattr(value, "persistent", True))
            return
        for home in KINDS:
            if name in parts.get(home, ()):
                if value is None or (home == "_buffers" and isinstance(value, Tensor)):
                    getattr(self, home)[name] = value
                    return
                kind, expected = _TAKES[home]
                raise TypeError(f"cannot assign '{type(value).__name__}' as {kind} '{name}' ({expected} expected)")
        super().__setattr__(name, value)

    def _forget(self, name, stays):
        """Makes room for something under a name; what takes the place of its like keeps the order."""
        parts = self.__dict__
        if name not in parts[stays]:
            parts.pop(name, None)
        for home in KINDS:
            if home != stays and name in parts[home]:
                del getattr(self, home)[name]
        parts["_transient"].discard(name)

    def __setstate__(self, state):
        settle(self, state)

    def __getattr__(self, name):
        # Seldom: what belongs to a module stands among its attributes (`Home`).
        parts = self.__dict__
        for kind in KINDS:
            if name in parts.get(kind, ()):
                return parts[kind][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __delattr__(self, name):
        for home in KINDS:
            if name in self.__dict__.get(home, ()):
                del getattr(self, home)[name]
                self._transient.discard(name)
                return
        super().__delattr__(name)

    def __dir__(self):
        return list({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def _check_name(self, kind, name):
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string, got {type(name).__name__}")
        if "." in name or not name:
            raise KeyError(f'{kind} name can\'t be empty or contain ".", got {name!r}')
        if hasattr(self, name) and name not in self.__dict__[f"_{kind}s"]:
            raise KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name, param):
        """Adds a parameter."""
        self._check_name("parameter", name)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' (gt.nn.Parameter expected)"
            )
        self._parameters[name] = param

    def register_buffer(self, name, tensor, persistent=True):
        """Adds a tensor that is saved and moved, but not trained."""
        self._check_name("buffer", name)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (gt.Tensor or None required)"
            )
        self._buffers[name] = tensor
        (self._transient.discard if persistent else self._transient.add)(name)

    def register_module(self, name, module):
        """Adds a module."""
        self._check_name("module", name)
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._modules[name] = module

    add_module = register_module

    # Walking.

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """Every module inside, this one first, with its dotted name."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self.__dict__["_modules"].items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate=True):
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_children(self):
        seen = set()
        for name, module in self.__dict__["_modules"].items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self):
        for _, module in self.named_children():
            yield module

    def _named(self, home, prefix, recurse, remove_duplicate):
        seen = set()
        for path, module in (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        ):
            for name, value in module.__dict__[home].items():
                if value is None or (remove_duplicate and id(value) in seen):
                    continue
                seen.add(id(value))
                yield f"{path}.{name}" if path else name, value

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        """Every parameter, with its dotted name."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse=True):
        """Every parameter."""
        for _, p in self.named_parameters(recurse=recurse):
            yield p

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse=True):
        for _, b in self.named_buffers(recurse=recurse):
            yield b

    def get_submodule(self, target):
        """The module with a dotted name."""
        module = self
        for name in target.split(".") if target else ():
            module = module._modules.get(name)
            if module is None:
                raise AttributeError(f"{type(self).__name__} has no module {target!r}")
        return module

    def get_parameter(self, target):
        """The parameter with a dotted name."""
        path, _, name = target.rpartition(".")
        parameters = self.get_submodule(path)._parameters
        if name not in parameters:
            raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")
        return parameters[name]

    def get_buffer(self, target):
        """The buffer with a dotted name."""
        path, _, name = target.rpartition(".")
        buffers = self.get_submodule(path)._buffers
        if name not in buffers:
            raise AttributeError(f"{type(self).__name__} has no buffer {target!r}")
        return buffers[name]

    def set_submodule(self, target, module, strict=False):
        """Puts a module under a dotted name."""
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and name not in parent._modules:
            raise AttributeError(f"{type(self).__name__} has no module {target!r}")
        setattr(parent, name, module)

    def apply(self, fn):
        """Calls `fn` with every module inside, this one last."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # Modes and conversions.

    def train(self, mode=True):
        """Sets training mode, here and in every module inside."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self):
        """Sets evaluation mode."""
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none=True):
        """Forgets all gradients."""
        for p in self.parameters():
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.detach_().zero_()

    def _apply(self, fn, recurse=True):
        """Replaces every parameter and buffer by what `fn` makes of it; what was shared stays shared."""
        change = fn if isinstance(fn, _Change) else _Change(fn)
        if recurse:
            for module in self.children():
                module._apply(change)
        for home in (self._parameters, self._buffers):
            for name, value in home.items():
                if value is not None:
                    home[name] = change.of(value)
        return self

    def to(self, *args, **kwargs):
        """Another dtype (of floating-point parameters and buffers) or device."""
        for wanted in (*args, kwargs.get("dtype")):
            wanted = wanted.dtype if isinstance(wanted, Tensor) else wanted
            if hasattr(wanted, "is_floating_point") and not wanted.is_floating_point:
                raise TypeError(f"Module.to only accepts floating point dtypes, but got desired dtype={wanted}")

        def convert(t):
            new = t.to(*args, **kwargs)
            if not t.is_floating_point() and new.dtype != t.dtype:
                return t.to(new.device)
            return new

        return self._apply(convert)

    def type(self, dst_type):
        """Another dtype, of every parameter and buffer."""
        return self._apply(lambda t: t.to(dst_type))

    def _cast(self, name):
        return self._apply(lambda t: getattr(t, name)() if t.is_floating_point() else t)

    def float(self):
        return self._cast("float")

    def double(self):
        return self._cast("double")

    def half(self):
        return self._cast("half")

    def bfloat16(self):
        return self._cast("bfloat16")

    def cpu(self):
        return self._apply(lambda t: t.cpu())

    def cuda(self, device=None):
        return self._apply(lambda t: t.cuda(device))

    def to_empty(self, *, device, recurse=True):
        """On another device, with values that mean nothing."""
        return self.to(device)

    def share_memory(self):
        """The module itself: tensors lie with the workers."""
        return self

    def compile(self, *args, **kwargs):
        """Nothing to do: GT compiles what repeats without being asked."""

    # Printing.

    def extra_repr(self):
        """What stands inside the parentheses when the module is printed."""
        return ""

    def _get_name(self):
        return type(self).__name__

    def __repr__(self):
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        inner = [f"({name}): " + _indent(repr(module)) for name, module in self._modules.items()]
        if not inner and len(lines) <= 1:
            return f"{self._get_name()}({''.join(lines)})"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines + inner) + "\n)"


class _Change:
    """What `_apply` makes of tensors. It goes from module to module and knows what it has seen."""

    def __init__(self, fn):
        self.fn, self.done = fn, {}

    def __call__(self, tensor):
        return self.fn(tensor)

    def of(self, value):
        """What a parameter or a buffer becomes, the same each time."""
        if id(value) not in self.done:
            self.done[id(value)] = (value, _converted(value, self.fn))
        return self.done[id(value)][1]


def _converted(value, fn):
    """What a parameter or a buffer becomes; a parameter stays the same object, so that optimizers keep it."""
    with no_grad():
        new = fn(value)
        if new is value or not isinstance(value, Parameter):
            return new
        grad = value.grad
        value.data = new
        value.grad = None if grad is None else fn(grad)
    return value


def _indent(text):
    return text.replace("\n", "\n  ")
