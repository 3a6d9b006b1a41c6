"""`python -m gt.scripts.top`: watches workers and clients on the whole screen; the same as `gt top`."""

import sys

from gt.__main__ import run_command

if __name__ == "__main__":
    sys.exit(run_command("top"))
