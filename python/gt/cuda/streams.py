"""Streams and events of PyTorch programs: the workers order what is recorded, so that a stream has nothing to say, and
an event waits for all of it."""

import time

from gt._gt import synchronize

__all__ = ["Event", "Stream", "current_stream", "default_stream", "stream"]


class Event:
    """A moment at which everything recorded before has run."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self._at = None

    def record(self, stream=None):
        """Waits for what was recorded, and takes the time."""
        synchronize()
        self._at = time.perf_counter()

    def elapsed_time(self, end_event):
        """Milliseconds from this event to another."""
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) * 1e3

    def query(self):
        return True

    def synchronize(self):
        """Nothing to do: `record` waited."""

    def wait(self, stream=None):
        """Nothing to do."""


class Stream:
    """Work in an order of its own: on GT, whatever does not depend on other work."""

    def __init__(self, device=None, priority=0, **kwargs):
        self.device, self.priority = device, priority

    def synchronize(self):
        synchronize()

    def wait_stream(self, stream):
        """Nothing to do: the workers know what depends on what."""

    wait_event = wait_stream

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def query(self):
        return True

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


_default = Stream()


def current_stream(device=None):
    return _default


default_stream = current_stream


def stream(stream):
    """The stream as a context, which changes nothing."""
    return _default if stream is None else stream
