"""Tensors: PyTorch's API, recorded and run when someone looks."""

import gt

a = gt.arange(6, dtype=gt.float32).reshape(2, 3)
b = a.T @ a
b[0] = 1.0
b.view(-1)[4:6].mul_(2)
print(b)
print("mean of each row:", b.mean(1).tolist())
