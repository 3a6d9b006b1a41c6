"""`python -m gt.server -p 12345`: the dispatcher that clients and workers connect to."""

import signal
import sys

from gt._gt import main


def run(argv=None):
    """Runs the server with command-line arguments; returns its exit status."""
    # Ctrl-C is the program's own business: Python must not turn it into an exception.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return main(["gt", "server", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(run())
