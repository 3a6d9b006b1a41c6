"""Modules: things with parameters, as in PyTorch."""

from gt._gt import Tensor
from gt.autograd.grad_mode import no_grad


class Parameter(Tensor):
    """A tensor that a module counts among its parameters."""

    def __new__(cls, data=None, requires_grad=True):
        self = Tensor.__new__(cls, data)
        self.requires_grad = requires_grad
        return self


class Buffer(Tensor):
    """A tensor that a module saves and moves, but does not train."""

    def __new__(cls, data=None, *, persistent=True):
        self = Tensor.__new__(cls, data)
        self.persistent = persistent
        return self


class _Hooks:
    """Callables in order of registration, each with a handle to remove it."""

    def __init__(self):
        self.list = {}
        self.next = 0

    def add(self, hook, first=False):
        self.next += 1
        self.list[self.next] = hook
        if first:
            self.list = {self.next: self.list.pop(self.next), **self.list}
        return _Handle(self, self.next)

    def __iter__(self):
        return iter(list(self.list.values()))

    def __bool__(self):
        return bool(self.list)


class _Handle:
    """A registered hook, until `remove()` is called."""

    def __init__(self, hooks, number):
        self._hooks, self.id = hooks, number

    def remove(self):
        self._hooks.list.pop(self.id, None)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.remove()


class _Keys(tuple):
    """What `load_state_dict` could not match."""

    def __new__(cls, missing, unexpected):
        return tuple.__new__(cls, (missing, unexpected))

    missing_keys = property(lambda self: self[0])
    unexpected_keys = property(lambda self: self[1])

    def __repr__(self):
        if not any(self):
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self[0]}, unexpected_keys={self[1]})"


class Module:
    """Base of all networks: subclass it, make parameters and modules in `__init__`, and write `forward`."""

    training = True

    def __init__(self):
        set_ = super().__setattr__
        set_("training", True)
        set_("_parameters", {})
        set_("_buffers", {})
        set_("_modules", {})
        set_("_transient", set())
        set_("_forward_pre_hooks", _Hooks())
        set_("_forward_hooks", _Hooks())
        set_("_state_dict_hooks", _Hooks())
        set_("_load_state_dict_pre_hooks", _Hooks())

    def forward(self, *args, **kwargs):
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args, **kwargs):
        if not self._forward_pre_hooks and not self._forward_hooks:
            return self.forward(*args, **kwargs)
        for hook in self._forward_pre_hooks:
            changed = hook(self, args, kwargs) if getattr(hook, "_with_kwargs", False) else hook(self, args)
            if changed is not None:
                if getattr(hook, "_with_kwargs", False):
                    args, kwargs = changed
                else:
                    args = changed if isinstance(changed, tuple) else (changed,)
        result = self.forward(*args, **kwargs)
        for hook in self._forward_hooks:
            with_kwargs = getattr(hook, "_with_kwargs", False)
            changed = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
            if changed is not None:
                result = changed
        return result

    # What belongs to the module.

    def __setattr__(self, name, value):
        parts = self.__dict__
        if isinstance(value, (Parameter, Module, Buffer)):
            if "_parameters" not in parts:
                raise AttributeError("cannot assign parameters or modules before Module.__init__() call")
            home = (
                "_parameters"
                if isinstance(value, Parameter)
                else "_modules"
                if isinstance(value, Module)
                else "_buffers"
            )
            self._forget(name)
            parts[home][name] = value
            if isinstance(value, Buffer) and not getattr(value, "persistent", True):
                parts["_transient"].add(name)
            return
        for home in ("_parameters", "_modules", "_buffers"):
            if name in parts.get(home, ()):
                if value is None or (home == "_buffers" and isinstance(value, Tensor)):
                    parts[home][name] = value
                    return
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as {home[1:-1].rstrip('e')} '{name}' "
                    f"({'gt.nn.Parameter' if home == '_parameters' else 'gt.nn.Module or gt.Tensor'} or None expected)"
                )
        super().__setattr__(name, value)

    def _forget(self, name):
        parts = self.__dict__
        parts.pop(name, None)
        for home in ("_parameters", "_buffers", "_modules"):
            parts[home].pop(name, None)
        parts["_transient"].discard(name)

    def __getattr__(self, name):
        parts = self.__dict__
        for home in ("_parameters", "_buffers", "_modules"):
            if home in parts and name in parts[home]:
                return parts[home][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __delattr__(self, name):
        for home in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__[home]:
                del self.__dict__[home][name]
                return
        super().__delattr__(name)

    def __dir__(self):
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

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
        self._buffers[name] = tensor
        (self._transient.discard if persistent else self._transient.add)(name)

    def register_module(self, name, module):
        """Adds a module."""
        self._check_name("module", name)
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
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self):
        for _, module in self.named_modules():
            yield module

    def named_children(self):
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self):
        for _, module in self.named_children():
            yield module

    def _named(self, home, prefix, recurse, remove_duplicate):
        seen = set()
        for path, module in self.named_modules(prefix=prefix) if recurse else [(prefix, self)]:
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

    def apply(self, fn):
        """Calls `fn` with every module inside, this one last."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # Modes and conversions.

    def train(self, mode=True):
        """Sets training mode, here and in every module inside."""
        self.training = bool(mode)
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

    def _apply(self, fn):
        for module in self.children():
            module._apply(fn)
        for home in ("_parameters", "_buffers"):
            for name, value in self.__dict__[home].items():
                if value is None:
                    continue
                with no_grad():
                    new = fn(value)
                if new is value:
                    continue
                if isinstance(value, Parameter):
                    grad = value.grad
                    new = Parameter(new, value.requires_grad)
                    new.grad = None if grad is None else fn(grad)
                self.__dict__[home][name] = new
        return self

    def to(self, *args, **kwargs):
        """Another dtype (of floating-point parameters and buffers) or device."""
        from gt import _gt

        def convert(t):
            new = t.to(*args, **kwargs)
            if not t.is_floating_point() and new.dtype != t.dtype:
                return new.to(t.dtype) if new.device != t.device else t
            return new

        del _gt
        return self._apply(convert)

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

    # Saving and loading.

    def state_dict(self, *, destination=None, prefix="", keep_vars=False):
        """Parameters and buffers by dotted name, sharing their storage."""
        out = {} if destination is None else destination
        for name, p in self._parameters.items():
            if p is not None:
                out[prefix + name] = p if keep_vars else p.detach()
        for name, b in self._buffers.items():
            if b is not None and name not in self._transient:
                out[prefix + name] = b if keep_vars else b.detach()
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=out, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in self._state_dict_hooks:
            hook(self, out, prefix, None)
        return out

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Copies values by dotted name into parameters and buffers."""
        own = self.state_dict(keep_vars=True)
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        problems = []
        with no_grad():
            for name, target in own.items():
                if name not in state_dict:
                    continue
                value = state_dict[name]
                if tuple(value.shape) != tuple(target.shape):
                    problems.append(
                        f"size mismatch for {name}: copying a param with shape {value.shape} from checkpoint, the "
                        f"shape in current model is {target.shape}."
                    )
                elif assign:
                    self._assign(name, target, value)
                else:
                    target.copy_(value)
        if strict and missing:
            problems.append(f"Missing key(s) in state_dict: {', '.join(map(repr, missing))}.")
        if strict and unexpected:
            problems.append(f"Unexpected key(s) in state_dict: {', '.join(map(repr, unexpected))}.")
        if problems:
            lines = "\n\t".join(problems)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t{lines}")
        return _Keys(missing, unexpected)

    def _assign(self, name, target, value):
        path, _, last = name.rpartition(".")
        module = self.get_submodule(path)
        if isinstance(target, Parameter) and not isinstance(value, Parameter):
            value = Parameter(value, target.requires_grad)
        home = module._parameters if last in module._parameters else module._buffers
        home[last] = value

    # Hooks.

    def register_forward_pre_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Calls `hook(module, args)` before each forward; what it returns replaces the arguments."""
        return self._forward_pre_hooks.add(_marked(hook, with_kwargs), prepend)

    def register_forward_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Calls `hook(module, args, output)` after each forward; what it returns replaces the output."""
        return self._forward_hooks.add(_marked(hook, with_kwargs), prepend)

    def register_state_dict_post_hook(self, hook):
        return self._state_dict_hooks.add(hook)

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


def _indent(text):
    return text.replace("\n", "\n  ")


def _marked(hook, with_kwargs):
    if not with_kwargs:
        return hook

    def marked(*args):
        return hook(*args)

    marked._with_kwargs = True
    return marked


class Sequential(Module):
    """Modules, each called with what the one before gave."""

    def __init__(self, *modules):
        super().__init__()
        named = modules[0].items() if len(modules) == 1 and isinstance(modules[0], dict) else enumerate(modules)
        for name, module in named:
            self.add_module(str(name), module)

    def forward(self, x):
        for module in self._modules.values():
            x = module(x)
        return x

    def append(self, module):
        self.add_module(str(len(self)), module)
        return self

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)(dict(list(self._modules.items())[index]))
        return list(self._modules.values())[index]

    def __setitem__(self, index, module):
        self._modules[list(self._modules)[index]] = module


class ModuleList(Module):
    """A list of modules."""

    def __init__(self, modules=()):
        super().__init__()
        self.extend(modules)

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
        self._modules.clear()
        return self.extend(modules)

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def __getitem__(self, index):
        modules = list(self._modules.values())
        return type(self)(modules[index]) if isinstance(index, slice) else modules[index]

    def __setitem__(self, index, module):
        self._modules[str(range(len(self))[index])] = module


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules=None):
        super().__init__()
        for name, module in dict(modules or {}).items():
            self.add_module(name, module)

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


class ParameterList(Module):
    """A list of parameters."""

    def __init__(self, values=()):
        super().__init__()
        for value in values:
            self.append(value)

    def append(self, value):
        self.register_parameter(str(len(self)), value if isinstance(value, Parameter) else Parameter(value))
        return self

    def __len__(self):
        return len(self._parameters)

    def __iter__(self):
        return iter(self._parameters.values())

    def __getitem__(self, index):
        return list(self._parameters.values())[index]
