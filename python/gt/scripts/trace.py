"""`python -m gt.scripts.trace`: writes down what a running system does for a while; the same as `gt trace`."""

import sys

from gt.__main__ import run_command

if __name__ == "__main__":
    sys.exit(run_command("trace"))
