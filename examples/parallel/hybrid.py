"""A 2 x 2 hybrid: two copies of the model on parts of the batch, each copy divided over two workers.

The planner lays programs out along one axis for now: all four workers share the batch, and the answer is the same.

python examples/parallel/hybrid.py [--workers 4] [--model-size small]
"""

import common

if __name__ == "__main__":
    common.main(__doc__, "hybrid.yaml", workers=4)
