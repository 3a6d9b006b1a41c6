# Everything a person runs here. `make` alone lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# `cargo nextest` where it is present: faster, and it names slow tests.
RUST_TEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo "nextest run" || echo "test")
# How long random programs may take, in seconds for each test of them.
BUDGET ?= 20
# Seconds for the laws on a GPU.
LAWS ?= 180
# Rows of the table of a GPU that `bench-gpu` measures, and options of it; all rows if there are none.
ROWS ?=
# How long the simulator goes through seeds, in seconds.
SIM ?= 60
# Over how many workers `test-sharded` splits everything; 1, 3 and 8 have passed too.
WORKERS ?= 4
# Where cargo builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# How many random programs `check-kernels` takes kernels from, and for how long it compiles (0: all of them); `check` takes a
# sample within KERNEL_SECONDS.
PROGRAMS ?= 1000
SECONDS ?= 0
KERNEL_SECONDS ?= 240

.DEFAULT_GOAL := help
.PHONY: help demo test test-rust test-python test-unix test-tcp test-sharded check check-kernels kernels fmt docs bench develop \
  wheel tour soak gpu-kit test-gpu bench-gpu clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: develop ## set up all that is needed and train a small model on the auto-started local system
	$(BIN)/python demo.py

test: develop test-rust test-python test-unix test-tcp test-sharded ## set up all that is needed and pass every test

test-rust: ## Rust tests: laws over the op table, random programs, simulation of the dispatcher
	GT_SIM_SECONDS=$(SIM) GT_RANDOM_SECONDS=$(BUDGET) cargo $(RUST_TEST) --release --workspace --exclude gt-py

test-python: develop ## the Python suite on the in-process system
	$(BIN)/python -m pytest tests

test-unix: develop ## the same suite over a unix socket with one worker
	GT_TEST_TRANSPORT=unix $(BIN)/python -m pytest tests -m "not local_only"

test-tcp: develop ## the same suite over TCP with four workers
	GT_TEST_TRANSPORT=tcp4 $(BIN)/python -m pytest tests -m "not local_only"

test-sharded: develop ## the same suite with everything split over WORKERS (4) workers inside the process
	GT_AUTO_SHARD=1 GT_SHARD_MIN=0 GT_WORKERS=$(WORKERS) $(BIN)/python -m pytest tests -m "not local_only"

soak: develop ## long mode of random programs and simulation (set BUDGET and SIM)
	$(MAKE) test-rust BUDGET=600 SIM=600

check: $(BIN)/.tools ## formatting, lints and types, cheapest first
	cargo fmt --all --check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	cargo clippy --release --workspace --all-targets -- -D warnings
	$(BIN)/python -m mypy
	$(MAKE) check-kernels PROGRAMS=100 SECONDS=$(KERNEL_SECONDS)

check-kernels: $(BIN)/.tools ## compile the CUDA kernels of samples and random programs by NVRTC, which needs no GPU
	cargo run --release --quiet -p gt-kernels --example texts -- $(TARGET)/texts $(PROGRAMS)
	$(BIN)/python tools/kernels.py check $(TARGET)/texts --seconds $(SECONDS)

kernels: $(BIN)/.tools ## compile the plain CUDA kernels that ship in the wheel
	-$(BIN)/python tools/kernels.py build $(TARGET)/kernels

fmt: $(BIN)/.tools ## format everything
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: develop ## the documentation as a site, in site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	$(BIN)/python tools/api.py
	$(BIN)/mkdocs build --strict --quiet --site-dir site

bench: develop ## the benchmarks, with PyTorch beside where it is importable
	$(BIN)/python benchmarks/spine.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/dynamic.py
	$(BIN)/python benchmarks/compilation_benchmark.py
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/overhead.py

develop: $(BIN)/.tools kernels ## build the package into the virtual environment
	$(BIN)/maturin develop --release --quiet

wheel: $(BIN)/.tools kernels ## build the wheel into dist/
	$(BIN)/maturin build --release --out dist

tour: wheel ## follow the five-minute tour of the docs from the wheel, in an empty environment
	$(BIN)/python tools/tour.py dist/gt-*.whl

gpu-kit: wheel ## all that test-gpu needs, in dist/: the wheel, the laws as a program, and pytest
	cargo build --release -p gt-worker --example gpu_laws --example gpu_gang --example gpu_lend
	install -s $(TARGET)/release/examples/gpu_laws dist/gpu_laws
	install -s $(TARGET)/release/examples/gpu_gang dist/gpu_gang
	install -s $(TARGET)/release/examples/gpu_lend dist/gpu_lend
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --only-binary :all: --python-version 3.12 -d dist/tools pytest

bench-gpu: ## on a machine with a GPU, from the wheel in dist/: what one GPU must reach, with PyTorch beside it
	rm -rf dist/site
	$(PYTHON) -m pip install --quiet --no-deps --no-index --target dist/site dist/gt-*.whl
	PYTHONPATH=dist/site $(PYTHON) benchmarks/gpu.py $(ROWS)

test-gpu: ## on a machine with a GPU, from what gpu-kit put into dist/: the laws of the op table and the Python suite
	rm -rf dist/site
	$(PYTHON) -m pip install --quiet --no-deps --no-index --target dist/site dist/gt-*.whl dist/tools/*.whl
	dist/gpu_laws $(LAWS)
	dist/gpu_gang
	dist/gpu_lend
	GT_BACKEND=cuda PYTHONPATH=dist/site $(PYTHON) tests/gpu_smoke.py
	GT_BACKEND=cuda PYTHONPATH=$(CURDIR)/dist/site PATH="$(CURDIR)/dist/site/bin:$$PATH" $(PYTHON) tests/gpu_suite.py
	PYTHONPATH=dist/site $(PYTHON) tests/gpu_gang.py
	PYTHONPATH=dist/site $(PYTHON) tests/gpu_move.py

$(BIN)/.tools: requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

clean: ## remove what was built
	cargo clean
	rm -rf $(VENV) dist site
