"""Saving and loading the parameters and buffers of modules, by dotted name."""

from collections import OrderedDict

from gt._gt import Tensor, as_tensor
from gt.autograd.grad_mode import no_grad
from gt.nn.parameter import Parameter

EXTRA = "_extra_state"


class Keys(tuple):
    """What `load_state_dict` could not match."""

    def __new__(cls, missing, unexpected):
        return tuple.__new__(cls, (missing, unexpected))

    missing_keys = property(lambda self: self[0])
    unexpected_keys = property(lambda self: self[1])

    def __repr__(self):
        if not any(self):
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self[0]}, unexpected_keys={self[1]})"


def _quoted(keys):
    return ", ".join(f'"{key}"' for key in keys)


class State:
    """The part of `Module` that saves and loads."""

    # Of the format, for modules that read older ones.
    _version = 1

    def _own_state(self):
        """Parameters and persistent buffers of this module alone, with their names."""
        yield from ((name, p) for name, p in self._parameters.items() if p is not None)
        yield from ((name, b) for name, b in self._buffers.items() if b is not None and name not in self._transient)

    def _has_extra(self, method):
        return getattr(type(self), method) is not getattr(State, method)

    def get_extra_state(self):
        """What else is to be saved with the module; to be overridden together with `set_extra_state`."""
        raise RuntimeError("get_extra_state: a module that sets extra state gives it too")

    def set_extra_state(self, state):
        """Takes back what `get_extra_state` gave."""
        raise RuntimeError("set_extra_state: a module that gives extra state takes it back")

    def state_dict(self, destination=None, prefix="", keep_vars=False):
        """Parameters and buffers by dotted name, sharing their storage."""
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        out = destination
        about = {"version": self._version}
        if hasattr(out, "_metadata"):
            out._metadata[prefix[:-1]] = about
        for hook in self._state_dict_pre_hooks:
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(out, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=out, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for _, hook, marks in self._state_dict_hooks.marked():
            changed = hook(self, out, prefix, about)
            if changed is not None:
                if not marks.get("replaces"):
                    raise RuntimeError("state_dict post-hook must return None")
                out = changed
        return out

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name, value in self._own_state():
            destination[prefix + name] = value if keep_vars else value.detach()
        if self._has_extra("get_extra_state"):
            destination[prefix + EXTRA] = self.get_extra_state()

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Copies values by dotted name into parameters and buffers; with `assign`, takes the tensors themselves."""
        if not hasattr(state_dict, "items"):
            raise TypeError(f"load_state_dict: expected a dictionary, got {type(state_dict).__name__}")
        missing, unexpected, problems = [], [], []

        def load(module, values, prefix):
            module._assigns = assign
            try:
                about = metadata.get(prefix[:-1], {})
                module._load_from_state_dict(values, prefix, about, True, missing, unexpected, problems)
            finally:
                del module._assigns
            for name, child in module._modules.items():
                if child is not None:
                    inner = f"{prefix}{name}."
                    load(child, {key: v for key, v in values.items() if key.startswith(inner)}, inner)
            for hook in module._load_state_dict_post_hooks:
                hook(module, Keys(missing, unexpected))

        metadata = getattr(state_dict, "_metadata", None) or {}
        with no_grad():
            load(self, dict(state_dict), "")
        if strict and unexpected:
            problems.insert(0, f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
        if strict and missing:
            problems.insert(0, f"Missing key(s) in state_dict: {_quoted(missing)}. ")
        if problems:
            lines = "\n\t".join(problems)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t{lines}")
        return Keys(missing, unexpected)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Loads what belongs to this module alone; modules with a history of formats override it."""
        for hook in self._load_state_dict_pre_hooks:
            hook(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        own = dict(self._own_state())
        for name, target in own.items():
            key = prefix + name
            if key not in state_dict:
                missing_keys.append(key)
                continue
            try:
                self._load_one(name, target, key, state_dict[key], error_msgs)
            except (RuntimeError, TypeError, ValueError) as error:
                error_msgs.append(f'While copying the parameter named "{key}", an exception occurred : {error}.')
        if self._has_extra("set_extra_state"):
            if prefix + EXTRA in state_dict:
                self.set_extra_state(state_dict[prefix + EXTRA])
            else:
                missing_keys.append(prefix + EXTRA)
        for key in state_dict:
            if key.startswith(prefix):
                first, dot, _ = key[len(prefix) :].partition(".")
                known = first in self._modules if dot else first in own
                if not known and not (key == prefix + EXTRA and self._has_extra("set_extra_state")):
                    unexpected_keys.append(key)

    def _load_one(self, name, target, key, value, problems):
        if not hasattr(value, "shape"):
            problems.append(
                f'While copying the parameter named "{key}", expected a Tensor or an array from the checkpoint but '
                f"received {type(value)}"
            )
            return
        if not len(target.shape) and tuple(value.shape) == (1,):
            value = value.reshape(())
        if tuple(value.shape) != tuple(target.shape):
            problems.append(
                f"size mismatch for {key}: copying a param with shape {_size(value)} from checkpoint, the shape in "
                f"current model is {_size(target)}."
            )
        elif self.__dict__.get("_assigns"):
            value = value if isinstance(value, Tensor) else as_tensor(value)
            if isinstance(target, Parameter):
                value = value if isinstance(value, Parameter) else Parameter(value, target.requires_grad)
                value.requires_grad_(target.requires_grad)
            (self._parameters if name in self._parameters else self._buffers)[name] = value
        else:
            target.copy_(value if isinstance(value, Tensor) else as_tensor(value))


def _size(value):
    return f"gt.Size({list(value.shape)})"
