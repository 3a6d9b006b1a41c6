"""`python -m gt`: the same as the program `gt`."""

import signal
import sys

from gt._gt import main


def run():
    """Runs the program `gt` with the command-line arguments."""
    sys.exit(run_command())


def run_command(*command):
    """Runs a command of the program `gt` with the rest of the command line; returns its exit status."""
    # Ctrl-C is the program's own business: Python must not turn it into an exception.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return main(["gt", *command, *sys.argv[1:]])


if __name__ == "__main__":
    run()
