"""Training a small network; the same script runs on a cluster with GT_SERVER=host:port."""

import gt
from gt import nn

gt.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = nn.SGD(model.parameters(), lr=0.2)

x = gt.rand(256, 2) * 2 - 1
target = ((x[:, 0] * x[:, 1]) > 0).float().unsqueeze(1)

for step in range(1001):
    loss = nn.binary_cross_entropy(model(x).sigmoid(), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 250 == 0:
        print(f"step {step:4}  loss {loss.item():.3f}")
