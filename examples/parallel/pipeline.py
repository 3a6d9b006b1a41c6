"""A pipeline: each worker has a run of layers, and micro-batches follow one another through them.

    python examples/parallel/pipeline.py [--workers 2] [--model-size small]

Recording waits for nothing, so stages work on different micro-batches at the same time. A worker runs what it is sent
in the order in which it was recorded, so the forward passes come first: that order has the smallest bubble.
"""

import common

import gt

STAGES = 2
MICRO_BATCHES = 4


def step(model, ids, targets):
    """One batch in micro-batches; the gradients add up to those of the whole batch."""
    size = len(ids) // MICRO_BATCHES
    parts = [slice(i * size, (i + 1) * size) for i in range(MICRO_BATCHES)]
    losses, total = [], 0.0

    def forward(part):
        with gt.signal.context("train"):
            losses.append(model.loss(common.tensor(ids[part]), common.tensor(targets[part])) / MICRO_BATCHES)

    def backward():
        loss = losses.pop(0)
        loss.backward()
        return loss.detach()

    for part in parts:
        forward(part)
    while losses:
        total = total + backward()
    return total


def bubble(run, single):
    """How long the stages waited, and how long they must: (stages - 1) of (micro-batches + stages - 1) turns."""
    least = (STAGES - 1) / (MICRO_BATCHES + STAGES - 1)
    for i, idle in enumerate(run.idle):
        print(f"stage {i}: idle {idle:.0%} of the time, of which the pipeline's bubble is {least:.0%}")


if __name__ == "__main__":
    common.main(__doc__, "pipeline.yaml", workers=STAGES, step=step, more=bubble)
