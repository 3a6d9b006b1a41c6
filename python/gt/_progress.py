"""A bar for what takes long: on a terminal, and only there."""

import sys
import time


class Bar:
    """Shows how far something has come, once it has taken a second. Silent unless stderr is a terminal."""

    def __init__(self, what, total):
        self.what, self.total, self.done = what, total, 0
        self.began = self.drawn = time.monotonic()
        self.shows, self.shown = sys.stderr is not None and sys.stderr.isatty(), False

    def add(self, amount):
        """So much more has come."""
        self.done += amount
        now = time.monotonic()
        if not self.shows or now - self.began < 1 or now - self.drawn < 0.1:
            return
        part = min(1.0, self.done / max(1, self.total))
        full = round(part * 30)
        rate = self.done / (now - self.began) / 1e6
        print(
            f"\r{self.what} {'━' * full}{'╌' * (30 - full)} {part:4.0%} {rate:.0f} MB/s\x1b[K", end="", file=sys.stderr
        )
        sys.stderr.flush()
        self.drawn, self.shown = now, True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr)
            sys.stderr.flush()
