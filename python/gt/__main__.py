"""`python -m gt`: the same as the program `gt`."""

import signal
import sys

from gt._gt import main


def run():
    """Runs the program `gt` with the command-line arguments."""
    # Ctrl-C is the program's own business: Python must not turn it into an exception.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(["gt", *sys.argv[1:]]))


if __name__ == "__main__":
    run()
