"""`python -m gt.server -p 12345`: the dispatcher that clients and workers connect to."""

import sys

from gt._gt import main


def run(argv=None):
    """Runs the server with command-line arguments; returns its exit status."""
    return main(["gt", "server", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(run())
