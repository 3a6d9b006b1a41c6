"""`python -m gt`: the same as the program `gt`."""

import signal
import sys

from gt._gt import main


def run():
    """Runs the program `gt` with the command-line arguments."""
    sys.exit(main(["gt", *sys.argv[1:]]))


if __name__ == "__main__":
    run()
