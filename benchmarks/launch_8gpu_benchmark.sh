#!/bin/bash
# The full comparison on the 8 GPUs of this machine; further options go to quick_benchmark.py:
#
#     bash benchmarks/launch_8gpu_benchmark.sh [--quick] [--workers cpu --threads 2] [--json FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
exec "$PYTHON" benchmarks/quick_benchmark.py --gpus 1 4 8 "$@"
