"""A 2 x 2 hybrid: two copies of the model on parts of the batch, each copy divided over two workers.

python examples/parallel/hybrid.py [--workers 4] [--model-size small]
"""

import common

if __name__ == "__main__":
    common.main(__doc__, "hybrid.yaml", workers=4)
