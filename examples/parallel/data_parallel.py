"""Data parallel: every worker has the whole model and its part of each batch; gradients are summed.

python examples/parallel/data_parallel.py [--workers 4] [--model-size small]
"""

import common

if __name__ == "__main__":
    common.main(__doc__, "data_parallel.yaml", workers=4)
