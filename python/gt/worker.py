"""`python -m gt.worker --host localhost -p 12345`: one worker, for one device."""

import sys

from gt._gt import main


def run(argv=None):
    """Runs a worker with command-line arguments; returns its exit status."""
    return main(["gt", "worker", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(run())
