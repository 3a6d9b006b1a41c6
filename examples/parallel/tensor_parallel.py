"""Tensor parallel: the products of each layer are divided by columns, then by rows, with one sum per pair.

python examples/parallel/tensor_parallel.py [--workers 2] [--model-size small]
"""

import common

if __name__ == "__main__":
    common.main(__doc__, "tensor_parallel.yaml", workers=2)
