"""Tools that watch a running system: `python -m gt.scripts.top` and its kin are the program `gt` by other names."""
