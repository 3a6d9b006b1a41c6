"""The base of optimizers: groups of parameters with their settings, and what is kept per parameter."""

from gt._gt import Tensor
from gt.autograd.grad_mode import enable_grad


class Optimizer:
    """Parameters in groups, each with its settings."""

    def __init__(self, params, defaults):
        if isinstance(params, Tensor):
            raise TypeError("params argument given to the optimizer should be an iterable of Tensors or dicts")
        self.defaults = defaults
        self.state = {}
        self.param_groups = []
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def add_param_group(self, group):
        """Adds parameters, with settings of their own."""
        group = {**self.defaults, **group}
        params = group["params"]
        group["params"] = [params] if isinstance(params, Tensor) else list(params)
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for p in group["params"]:
            if not isinstance(p, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
            if not p.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
            if id(p) in known:
                raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(group)

    def zero_grad(self, set_to_none=True):
        """Forgets all gradients."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    p.grad.zero_()

    def step(self, closure=None):
        """One step; the closure, if given, computes the loss and its gradients first."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step(group)
        return loss

    def _step(self, group):
        raise NotImplementedError

    def _states(self, group, read):
        return [read(self.state.get(p, {})) for p in group["params"]]

    def state_dict(self):
        """Settings, and what is kept per parameter, by number."""
        number = {p: i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        groups = [{**g, "params": [number[p] for p in g["params"]]} for g in self.param_groups]
        return {"state": {number[p]: state for p, state in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict):
        """Puts back what `state_dict` gave."""
        saved = state_dict["param_groups"]
        if [len(g["params"]) for g in saved] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
            )
        params = [p for g in self.param_groups for p in g["params"]]
        for group, old in zip(self.param_groups, saved):
            group.update({name: value for name, value in old.items() if name != "params"})
        self.state = {
            params[i]: {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()}
            for i, state in state_dict["state"].items()
        }

    def __repr__(self):
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {name}: {value}" for name, value in sorted(group.items()) if name != "params"]
        return "\n".join([*lines, ")"])
