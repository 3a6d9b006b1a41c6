"""How automatic sharding scales. Starts the server and one worker per GPU, measures, and cleans up:

    python benchmarks/quick_benchmark.py --gpus 8 --quick       # 3 tests, 3 iterations a turn
    python benchmarks/quick_benchmark.py --gpus 1 4 8           # full comparison
    python benchmarks/quick_benchmark.py --gpus 1 2 --workers cpu --threads 1

With `--workers cpu` the workers run on cores of their own, a fixed number of threads each. Every row is compared with
independent pinned processes that do the same products without communication, in the same run.
"""

import contextlib

import sharding


def main():
    args = sharding.options(__doc__)

    @contextlib.contextmanager
    def system_of(count):
        with sharding.running(sharding.devices(args.workers, count, args.threads), args.port) as address:
            yield address, None

    sharding.run(args, system_of)


if __name__ == "__main__":
    main()
