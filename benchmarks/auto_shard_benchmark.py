"""How automatic sharding scales on a system that is already running (by default on localhost:9000):

    python -m gt.server -p 9000
    CUDA_VISIBLE_DEVICES=0 python -m gt.worker --host localhost -p 9000      # one per GPU
    python benchmarks/auto_shard_benchmark.py --gpus 1 2 4 8

A count below the number of workers uses the first so many of them, by a signal that names them.
"""

import contextlib
import os
import time

import sharding


def main():
    args = sharding.options(__doc__)
    address = os.environ.get("GT_SERVER") or f"localhost:{args.port}"
    try:
        there = workers(address, args.gpus[-1])
    except ConnectionError as error:
        raise SystemExit(f"{error}\nStart a server first: python -m gt.server -p {args.port}") from None
    if there < args.gpus[-1]:
        raise SystemExit(
            f"--gpus {args.gpus[-1]}: {there} workers are connected to {address}: start more with "
            f"python -m gt.worker --host localhost -p {args.port}"
        )

    sharding.run(args, lambda count: contextlib.nullcontext((address, None if count == there else count)))


def workers(address, wanted, seconds=20):
    """How many workers a system has, once there are as many as wanted or they have had time to come."""
    import gt

    until = time.monotonic() + seconds
    with gt.open_session(address) as session:
        count = len(gt.debug.get_worker_stats()["workers"])
        while count < wanted and time.monotonic() < until:
            time.sleep(0.2)
            count = len(gt.debug.get_worker_stats()["workers"])
    session.close()
    return count


if __name__ == "__main__":
    main()
