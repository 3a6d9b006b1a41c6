"""Where time goes: `with gt.profiler.profile(): ...` prints a table and can write a trace for Perfetto."""

import enum
import sys
from contextlib import ContextDecorator

from gt._gt import _take_profile, _watch, synchronize


class profile:
    """Profiles the block: every kernel that its work runs, on all workers, with the source lines it is for.

    >>> with gt.profiler.profile("trace.json") as prof:
    ...     train_step()

    At the end of the block the work that was recorded in it is done, a table of the kernels is printed (not if
    `quiet`), and with `output` a trace is written that https://ui.perfetto.dev and chrome://tracing open (`.json`), or
    an instruction log for `gt visualize` (`.log`). The arguments of PyTorch's `profile` (`activities`, `record_shapes`,
    `profile_memory`, `with_stack`) are taken and change nothing: devices, shapes and source lines are always there.
    """

    def __init__(
        self,
        output=None,
        *,
        quiet=False,
        row_limit=20,
        activities=None,
        record_shapes=True,
        profile_memory=False,
        with_stack=True,
    ):
        self.output = output
        self.quiet = quiet
        self.row_limit = row_limit
        self._profile = None

    def start(self):
        """Begins; what was recorded before is not part of it."""
        synchronize()
        _watch("kernels")

    def stop(self):
        """Ends; what was recorded meanwhile is done."""
        try:
            self._profile = _take_profile()
        finally:
            _watch("")

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, error, trace):
        self.stop()
        if self.output is not None:
            self.export_chrome_trace(self.output)
        if not self.quiet and kind is None:
            print(self.table(self.row_limit), end="", file=sys.stdout)

    def _taken(self):
        if self._profile is None:
            raise RuntimeError("profile: nothing was profiled yet: leave the `with` block or call stop() first")
        return self._profile

    def key_averages(self):
        """The rows, as PyTorch's profiler gives them: sort and print with `.table()`."""
        return KeyAverages(self._taken())

    def table(self, row_limit=20):
        """The rows as text."""
        return self._taken().table(row_limit)

    def export_chrome_trace(self, path):
        """Writes the trace; a path that ends in `.log` gets the instruction log's form."""
        taken = self._taken()
        with open(path, "w") as file:
            file.write(taken.log() if str(path).endswith(".log") else taken.json())

    @property
    def totals(self):
        """Sums: programs, seconds on devices, in queues and spent on plans, bytes, and the length of the profile."""
        return self._taken().rows()[1]


class KeyAverages(list):
    """Rows of a profile, from the most time down: dictionaries with name, family, calls, seconds and line."""

    def __init__(self, taken):
        super().__init__(taken.rows()[0])
        self._taken = taken

    def table(self, sort_by="self_time", row_limit=20, **_):
        """The rows as text. Every time of PyTorch's that can be sorted by is the time on the device here."""
        return self._taken.table(row_limit)


class ProfilerActivity(enum.Enum):
    """What PyTorch's `profile` looks at, for its `activities`."""

    CPU, CUDA = range(2)


class record_function(ContextDecorator):
    """Names a part of a program, as a context or a decorator. Kernels tell their source lines: it adds nothing."""

    def __init__(self, name, args=None):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None
