"""What signals mean: from a YAML file (`GT_CONFIG`, `gt.load_config`) or from calls (`gt.register_config`)."""

import dataclasses
import os
import typing  # noqa: F401  # dataclasses looks at it, also while another thread imports it

from gt import _gt


@dataclasses.dataclass
class ShardConfig:
    """Split along an axis over workers (by default all of them), or whole on each."""

    axis: int = 0
    workers: list | None = None
    replicated: bool = False

    def _written(self):
        return {"axis": self.axis, "workers": self.workers, "replicated": self.replicated}


@dataclasses.dataclass
class SignalConfig:
    """One signal. Everything but the first three is described in docs/signals.md."""

    shard: ShardConfig | None = None
    backward_signal: str | None = None
    compile: bool = False
    mesh: str | None = None
    workers: list | None = None
    layout: object = None
    parameters: dict | None = None
    modules: dict | None = None
    preset: str | list | None = None
    stages: int | list | None = None
    split: str | None = None
    column: list | None = None
    row: list | None = None

    def _written(self):
        """As a file would have it."""
        said = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if isinstance(self.shard, ShardConfig):
            said["shard"] = self.shard._written()
        return {key: value for key, value in said.items() if value is not None}

    @classmethod
    def _read(cls, written):
        said = dict(written or {})
        if "backward" in said:
            said["backward_signal"] = said.pop("backward")
        if said.get("shard") is not None:
            said["shard"] = ShardConfig(**said["shard"])
        return cls(**said)


class Config(dict):
    """Every signal by name."""

    @property
    def signals(self):
        return self


def load_config(path):
    """Reads a YAML file. Its signals are added to those known; when the file is edited, they change with it."""
    path = os.fspath(path)
    # A file that is not there is Python's own error, as everywhere.
    with open(path, "rb"):
        names = _gt._signal_load(path)
    return Config((name, config) for name, config in get_config().items() if name in names)


def register_config(name, config):
    """Says what one signal means, whatever a file said before."""
    if not isinstance(name, str):
        raise TypeError(f"register_config: expected the name of a signal, got {type(name).__name__}")
    if not isinstance(config, SignalConfig):
        raise TypeError(f"register_config: expected a SignalConfig, got {type(config).__name__}")
    _gt._signal_register(name, config._written())


def get_config():
    """Every signal of this process."""
    return Config((name, SignalConfig._read(written)) for name, written in _gt._signal_all().items())


def get_signal_config(name):
    """What a signal means; None if nobody said."""
    return get_config().get(name)
