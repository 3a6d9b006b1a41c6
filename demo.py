"""Trains a small network on two spirals, on the system that starts by itself. No server needed."""

import math
import time

import gt
from gt import nn


def spirals(n, turns=1.5, noise=0.04):
    """Two interleaved spirals: points and the spiral each belongs to."""
    radius = gt.linspace(0.15, 1.0, n)
    angle = radius * (turns * 2 * math.pi)
    arm = gt.stack([radius * angle.cos(), radius * angle.sin()], 1)
    points = gt.cat([arm, -arm]) + noise * gt.randn(2 * n, 2)
    return points, gt.cat([gt.zeros(n, dtype="int64"), gt.ones(n, dtype="int64")])


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)
        )

    def forward(self, x):
        return self.layers(x * 3)


def accuracy(model, points, labels):
    with gt.no_grad():
        return (model(points).argmax(1) == labels).float().mean().item()


def main(steps=1000, every=200):
    gt.manual_seed(1)
    train, test = spirals(256), spirals(128)
    model = Net()
    optimizer = nn.SGD(model.parameters(), lr=0.2, momentum=0.9)
    worker = gt.debug.get_worker_stats()["workers"][0]
    print(f"GT on {worker['backend']}: {worker['device']}, {sum(p.numel() for p in model.parameters())} parameters\n")
    print("  step    loss   accuracy")
    start = time.perf_counter()
    for step in range(steps + 1):
        loss = nn.cross_entropy_loss(model(train[0]), train[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            right = accuracy(model, *test)
            print(f"  {step:4}  {loss.item():6.4f}   {right:6.1%}  {'█' * round(right * 30)}")
    seconds = time.perf_counter() - start
    print(f"\n{steps} steps in {seconds:.1f} s, {seconds / steps * 1e6:.0f} µs each")
    return accuracy(model, *test)


if __name__ == "__main__":
    main()
