"""A 2 x 2 hybrid: two copies of the model on parts of the batch, each copy divided over two workers.

Workers 0 and 1 are one copy, 2 and 3 the other. Within a copy activations are summed, between copies gradients.

python examples/parallel/hybrid.py [--workers 4] [--model-size small]
"""

import common

if __name__ == "__main__":
    common.main(__doc__, "hybrid.yaml", workers=4)
