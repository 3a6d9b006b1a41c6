"""`python -m gt.scripts.visualize`: draws the timeline of instruction logs; the same as `gt visualize`."""

import sys

from gt.__main__ import run_command

if __name__ == "__main__":
    sys.exit(run_command("visualize"))
