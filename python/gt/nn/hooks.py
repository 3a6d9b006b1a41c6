"""Hooks of modules: where they are registered, and calls that run them."""

import warnings

from gt.nn.taps import BackwardTaps
from gt.signal import signals as _signals

KINDS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


class Hooked:
    """The part of `Module` that has hooks."""

    def _call_watched(self, args, kwargs):
        if _signals.speak or "_signal" in self.__dict__:
            return _signals.call(self, args, kwargs)
        return self._call_with_hooks(args, kwargs)

    def _call_with_hooks(self, args, kwargs):
        result, called = None, set()
        try:
            for _, hook, marks in self._forward_pre_hooks.marked():
                if not marks["with_kwargs"]:
                    changed = hook(self, args)
                    if changed is not None:
                        args = changed if isinstance(changed, tuple) else (changed,)
                    continue
                changed = hook(self, args, kwargs)
                if changed is not None:
                    if not isinstance(changed, tuple) or len(changed) != 2:
                        raise RuntimeError(
                            "forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got "
                            f"{changed}."
                        )
                    args, kwargs = changed
            taps = BackwardTaps(self) if self._backward_hooks or self._backward_pre_hooks else None
            if taps:
                args = taps.inputs(args)
            result = self.forward(*args, **kwargs)
            for number, hook, marks in self._forward_hooks.marked():
                called.add(number)
                changed = hook(self, args, kwargs, result) if marks["with_kwargs"] else hook(self, args, result)
                if changed is not None:
                    result = changed
            return taps.outputs(result) if taps else result
        except Exception:
            for number, hook, marks in self._forward_hooks.marked():
                if marks["always_call"] and number not in called:
                    self._call_nonetheless(hook, marks, args, kwargs, result)
            raise

    def _call_nonetheless(self, hook, marks, args, kwargs, result):
        """Calls a forward hook after an error, which stays the one that is raised."""
        try:
            hook(self, args, kwargs, result) if marks["with_kwargs"] else hook(self, args, result)
        except Exception as error:
            warnings.warn(
                "module forward hook with ``always_call=True`` raised an exception that was silenced as another error "
                f"was raised in forward: {error}",
                stacklevel=4,
            )

    def _hook(self, kind, hook, first=False, **marks):
        self._hooked = True
        return self.__dict__[kind].add(hook, first, **marks)

    def register_forward_pre_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Calls `hook(module, args)` before each forward; what it returns replaces the arguments."""
        return self._hook("_forward_pre_hooks", hook, prepend, with_kwargs=with_kwargs)

    def register_forward_hook(self, hook, *, prepend=False, with_kwargs=False, always_call=False):
        """Calls `hook(module, args, output)` after each forward; what it returns replaces the output."""
        return self._hook("_forward_hooks", hook, prepend, with_kwargs=with_kwargs, always_call=always_call)

    def register_full_backward_pre_hook(self, hook, prepend=False):
        """Calls `hook(module, grad_output)` when gradients reach the output; what it returns replaces them."""
        return self._hook("_backward_pre_hooks", hook, prepend)

    def register_full_backward_hook(self, hook, prepend=False):
        """Calls `hook(module, grad_input, grad_output)` when the gradients of the inputs are known; what it returns
        replaces them."""
        return self._hook("_backward_hooks", hook, prepend)

    register_backward_hook = register_full_backward_hook

    def register_state_dict_pre_hook(self, hook):
        """Calls `hook(module, prefix, keep_vars)` before the state is collected."""
        return self._state_dict_pre_hooks.add(hook)

    def register_state_dict_post_hook(self, hook):
        """Calls `hook(module, state_dict, prefix, local_metadata)` after the state is collected."""
        return self._state_dict_hooks.add(hook)

    def register_load_state_dict_pre_hook(self, hook):
        """Calls `hook(module, state_dict, prefix, ...)` before values are loaded; it may change the dictionary."""
        return self._load_state_dict_pre_hooks.add(hook)

    def _register_state_dict_hook(self, hook):
        """The older name of `register_state_dict_post_hook`, whose hooks may return another dictionary."""
        return self._state_dict_hooks.add(hook, replaces=True)

    def _register_load_state_dict_pre_hook(self, hook, with_module=False):
        """The older name of `register_load_state_dict_pre_hook`: `hook(state_dict, prefix, ...)`, without the module
        unless asked for."""
        return self._load_state_dict_pre_hooks.add(hook if with_module else lambda module, *about: hook(*about))

    def register_load_state_dict_post_hook(self, hook):
        """Calls `hook(module, incompatible_keys)` after values are loaded; it may change the lists of keys."""
        return self._load_state_dict_post_hooks.add(hook)
