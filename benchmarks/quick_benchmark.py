"""How automatic sharding scales. Starts the server and one worker per GPU, measures, and cleans up:

    python benchmarks/quick_benchmark.py --gpus 8 --quick       # 3 tests, at least 3 iterations each
    python benchmarks/quick_benchmark.py --gpus 1 4 8           # full comparison
    python benchmarks/quick_benchmark.py --gpus 1 2 --workers cpu --threads 1

With `--workers cpu` the workers run on cores of their own, a fixed number of threads each. Every row is compared with
independent pinned processes that do the same products without communication, in the same run.
"""

import sharding


def main():
    args = sharding.options(__doc__)

    def seconds_of(count, chosen):
        with sharding.running(sharding.devices(args.workers, count, args.threads), args.port) as address:
            return [sharding.system(case, address, args.iterations, args.download) for case in chosen]

    sharding.run(args, seconds_of)


if __name__ == "__main__":
    main()
