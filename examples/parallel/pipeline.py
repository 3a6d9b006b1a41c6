"""A pipeline: each worker has a run of layers, and micro-batches follow one another through them.

    python examples/parallel/pipeline.py [--workers 2] [--model-size small]

Recording waits for nothing, so the usual loop is all that it takes: a stage that waits for the gradient of one
micro-batch goes on with the next, and takes the gradient first when it has come (one forward, one backward).
"""

import common
import numpy as np

import gt

STAGES = 2
MICRO_BATCHES = 4


def step(model, ids, targets):
    """One batch in micro-batches; the gradients add up to those of the whole batch."""
    parts, total = min(MICRO_BATCHES, len(ids)), 0.0
    for ids_part, targets_part in zip(np.array_split(ids, parts), np.array_split(targets, parts)):
        # A micro-batch counts by its samples: they need not divide the batch.
        share = len(ids_part) / len(ids)
        with gt.signal.context("train"):
            loss = model.loss(common.tensor(ids_part), common.tensor(targets_part)) * share
        loss.backward()
        total = total + loss.detach()
    return total


def bubble(run, single):
    """How long the stages waited, and how long they must: (stages - 1) of (micro-batches + stages - 1) turns."""
    least = (STAGES - 1) / (MICRO_BATCHES + STAGES - 1)
    for i, idle in enumerate(run.idle):
        print(f"worker {i}: idle {idle:.0%} of the time, of which the pipeline's bubble is {least:.0%}")


if __name__ == "__main__":
    common.main(__doc__, "pipeline.yaml", workers=STAGES, step=step, more=bubble)
