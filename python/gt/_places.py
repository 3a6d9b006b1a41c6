"""Modules under the longer paths that PyTorch's have: `gt.nn.modules.conv`, `gt.optim.adamw`."""

import sys
from importlib import import_module
from types import ModuleType


def places(package, table, **more):
    """Makes modules inside a package, each with all that is in the modules it stands for, and further names."""
    made = {}
    for name, homes in table.items():
        module = ModuleType(f"{package}.{name}", "What PyTorch has under this path.")
        for home in homes.split():
            module.__dict__.update({k: v for k, v in vars(import_module(home)).items() if not k.startswith("__")})
        module.__dict__.update(more.get(name, {}))
        made[name] = sys.modules[module.__name__] = module
    return made
