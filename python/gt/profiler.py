"""Where time goes: `with gt.profiler.profile(): ...` prints a table and can write a trace for Perfetto."""

import enum
import os
import socket
import sys
import time
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
    With a `schedule` the steps that it says are profiled, told by `step()`; `on_trace_ready` is called with the profile
    when there is one, and nothing is printed.
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
        with_flops=False,
        with_modules=False,
        schedule=None,
        on_trace_ready=None,
    ):
        self._schedule, self._ready, self._step, self._on = schedule, on_trace_ready, 0, False
        self.output = output
        self.quiet = quiet
        self.row_limit = row_limit
        self._profile = None

    def start(self):
        """Begins; what was recorded before is not part of it."""
        synchronize()
        _watch("kernels")
        self._on = True

    def stop(self):
        """Ends; what was recorded meanwhile is done."""
        try:
            self._profile = _take_profile()
        finally:
            _watch("")
            self._on = False

    def _act(self):
        """Begins if the schedule says so."""
        if not self._on and self._schedule(self._step) in _RECORDS:
            self.start()

    def _tell(self):
        self.stop()
        if self._ready is not None:
            self._ready(self)

    def step(self):
        """The next step begins."""
        if self._schedule is not None and self._on and self._schedule(self._step) is ProfilerAction.RECORD_AND_SAVE:
            self._tell()
        self._step += 1
        if self._schedule is not None:
            self._act()

    def __enter__(self):
        self.start() if self._schedule is None else self._act()
        return self

    def __exit__(self, kind, error, trace):
        if self._schedule is not None or self._ready is not None:
            if self._on:
                self._tell()
            return
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


class ProfilerAction(enum.Enum):
    """What a step is for."""

    NONE, WARMUP, RECORD, RECORD_AND_SAVE = range(4)


_RECORDS = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def schedule(*, wait, warmup, active, repeat=0, skip_first=0):
    """Steps in rounds: some nothing is done in, some that warm up, and some that are profiled together."""
    if min(wait, warmup, repeat, skip_first) < 0 or active <= 0:
        raise ValueError("schedule: expected numbers of steps that are not negative, and active ones")

    def action(step):
        step -= skip_first
        turn, at = divmod(step, wait + warmup + active)
        if step < 0 or (repeat and turn >= repeat) or at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        last = at == wait + warmup + active - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    return action


def tensorboard_trace_handler(dir_name, worker_name=None, use_gzip=False):
    """For `on_trace_ready`: writes each trace into a folder, as JSON for Perfetto."""

    def write(prof):
        os.makedirs(dir_name, exist_ok=True)
        name = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        prof.export_chrome_trace(os.path.join(dir_name, f"{name}.{time.time_ns()}.pt.trace.json"))

    return write


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
