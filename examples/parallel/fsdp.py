"""FSDP (ZeRO-3): parameters, gradients and optimizer state are split, and each worker has its part of each batch.

python examples/parallel/fsdp.py [--workers 4] [--model-size small]
"""

import common


def memory(run, single):
    """Peak memory of each worker beside that of one worker with everything."""
    whole = single["peaks"][0]
    for i, peak in enumerate(run.peaks):
        print(f"worker {i}: peak {peak / 1e6:8.1f} MB, {peak / whole:.2f} of the {whole / 1e6:.1f} MB on one worker")


if __name__ == "__main__":
    common.main(__doc__, "fsdp.yaml", workers=4, more=memory)
