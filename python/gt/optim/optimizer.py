"""The base of optimizers: groups of parameters with their settings, and what is kept per parameter."""

import functools
import warnings
from collections import defaultdict

from gt._gt import Tensor, _zero_grad, as_tensor
from gt._hooks import Hooks
from gt.autograd.grad_mode import enable_grad


def _with_hooks(step):
    """A step with the step hooks around it, also where a subclass writes its own."""

    @functools.wraps(step)
    def stepped(self, *args, **kwargs):
        self._stepped = True
        # One that goes on to the step it overrides calls them once.
        if self._steps or not (self._pre_hooks.list or self._post_hooks.list):
            return step(self, *args, **kwargs)
        args = (self, *args)
        for hook in self._pre_hooks:
            changed = hook(self, args, kwargs)
            if changed is not None:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise RuntimeError(
                        f"{type(self).__name__}.step must return None or a tuple of (new_args, new_kwargs), but got "
                        f"{changed}."
                    )
                args, kwargs = changed
        self._steps = True
        try:
            result = step(*args, **kwargs)
        finally:
            self._steps = False
        for hook in self._post_hooks:
            hook(self, args, kwargs)
        return result

    return stepped


class Optimizer:
    """Parameters in groups, each with its settings."""

    # What each setting of a group becomes when a saved one lacks it.
    _later: dict = {}
    # Whether a step was ever begun, which schedulers want to know, and whether one goes on.
    _stepped = _steps = False
    # Whether a group has a parameter twice.
    _repeats = False

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "step" in cls.__dict__:
            cls.step = _with_hooks(cls.step)  # type: ignore[method-assign]

    def __init__(self, params, defaults):
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got a Tensor"
            )
        self.defaults = defaults
        self.state = defaultdict(dict)
        self.param_groups = []
        self._pre_hooks, self._post_hooks = Hooks(), Hooks()
        self._state_pre_hooks, self._state_post_hooks = Hooks(), Hooks()
        self._load_pre_hooks, self._load_post_hooks = Hooks(), Hooks()
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def add_param_group(self, param_group):
        """Adds parameters, with settings of their own."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group).__name__}")
        group = {**self.defaults, **param_group}
        params = group["params"]
        if isinstance(params, set):
            raise TypeError("optimizer parameters need to be organized in ordered collections, but a set has no order")
        params = [params] if isinstance(params, Tensor) else list(params)
        named = [isinstance(p, tuple) and len(p) == 2 for p in params]
        if any(named) and not all(named):
            raise ValueError("all optimizer params should be with/without names. Some param names are missing")
        if any(named):
            group["param_names"] = [name for name, _ in params]
            params = [p for _, p in params]
        names = "param_names" in group
        if self.param_groups and names != ("param_names" in self.param_groups[0]):
            raise ValueError(
                "all optimizer param groups should be with/without names. cannot add param group "
                f"{'with' if names else 'without'} names to the optimizer"
            )
        group["params"] = params
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
            if not p.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
            if id(p) in known:
                raise ValueError("some parameters appear in more than one parameter group")
        if len({id(p) for p in params}) != len(params):
            warnings.warn("optimizer contains a parameter group with duplicate parameters", stacklevel=3)
            self._repeats = True
        self.param_groups.append(group)

    def zero_grad(self, set_to_none=True):
        """Forgets all gradients."""
        for group in self.param_groups:
            if set_to_none:
                _zero_grad(group["params"])
                continue
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.detach_().zero_()

    @_with_hooks
    def step(self, closure=None):
        """One step; the closure, if given, computes the loss and its gradients first."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for group in self._rounds() if self._repeats else self.param_groups:
            self._step(group)
        return loss

    def _rounds(self):
        """The groups, in parts that have no parameter twice."""
        for group in self.param_groups:
            left = group["params"]
            while left:
                now, later, seen = [], [], set()
                for p in left:
                    (later if id(p) in seen else now).append(p)
                    seen.add(id(p))
                yield {**group, "params": now}
                left = later

    def _step(self, group):
        raise NotImplementedError

    def register_step_pre_hook(self, hook):
        """Calls `hook(optimizer, args, kwargs)` before each step; what it returns replaces both. `args` begins with the
        optimizer."""
        return self._pre_hooks.add(hook)

    def register_step_post_hook(self, hook):
        """Calls `hook(optimizer, args, kwargs)` after each step."""
        return self._post_hooks.add(hook)

    def register_state_dict_pre_hook(self, hook, prepend=False):
        """Calls `hook(optimizer)` before the state is collected."""
        return self._state_pre_hooks.add(hook, prepend)

    def register_state_dict_post_hook(self, hook, prepend=False):
        """Calls `hook(optimizer, state_dict)` after the state is collected; what it returns replaces it."""
        return self._state_post_hooks.add(hook, prepend)

    def register_load_state_dict_pre_hook(self, hook, prepend=False):
        """Calls `hook(optimizer, state_dict)` before state is loaded; what it returns is loaded instead."""
        return self._load_pre_hooks.add(hook, prepend)

    def register_load_state_dict_post_hook(self, hook, prepend=False):
        """Calls `hook(optimizer)` after state is loaded."""
        return self._load_post_hooks.add(hook, prepend)

    def state_dict(self):
        """Settings, and what is kept per parameter, by the parameter's number: PyTorch's format."""
        for hook in self._state_pre_hooks:
            hook(self)
        number = {}
        for group in self.param_groups:
            for p in group["params"]:
                number.setdefault(p, len(number))
        groups = [{**g, "params": [number[p] for p in g["params"]]} for g in self.param_groups]
        state = {"state": {number[p]: dict(state) for p, state in self.state.items()}, "param_groups": groups}
        for hook in self._state_post_hooks:
            changed = hook(self, state)
            state = state if changed is None else changed
        return state

    def load_state_dict(self, state_dict):
        """Puts back what `state_dict` gave; the numbers stand for the parameters in their order."""
        state_dict = dict(state_dict)
        for hook in self._load_pre_hooks:
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if [len(g["params"]) for g in saved] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
            )
        numbers = [i for g in saved for i in g["params"]]
        params = dict(zip(numbers, (p for g in self.param_groups for p in g["params"])))
        self.param_groups = [
            {**self._later, **old, "params": group["params"]} for group, old in zip(self.param_groups, saved)
        ]
        self.state = defaultdict(dict)
        for i, state in state_dict["state"].items():
            self.state[params[i]] = {name: self._loaded(name, value, params[i]) for name, value in state.items()}
        for hook in self._load_post_hooks:
            hook(self)

    def _loaded(self, name, value, param):
        """A saved value as the step wants it: a copy, in the type of its parameter."""
        if name == "step":
            return int(value)
        if not hasattr(value, "shape"):
            return value
        value = value.detach().clone() if isinstance(value, Tensor) else as_tensor(value)
        return value.to(param.dtype) if value.is_floating_point() else value

    def __repr__(self):
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines += [""] * (i > 0) + [f"Parameter Group {i}"]
            lines += [f"    {name}: {value}" for name, value in sorted(group.items()) if name != "params"]
        return "\n".join([*lines, ")"])
