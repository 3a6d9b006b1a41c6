"""`python -m gt.worker --host localhost -p 12345`: one worker, for one device."""

import signal
import sys

from gt._gt import main


def run(argv=None):
    """Runs a worker with command-line arguments; returns its exit status."""
    # Ctrl-C is the program's own business: Python must not turn it into an exception.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return main(["gt", "worker", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(run())
