# Everything a person runs here. `make` alone lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# `cargo nextest` where it is present: faster, and it names slow tests.
RUST_TEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo "nextest run" || echo "test")
# How long random programs may take, in seconds for each test of them.
BUDGET ?= 20
# How long the simulator goes through seeds, in seconds.
SIM ?= 60

.DEFAULT_GOAL := help
.PHONY: help demo test test-rust test-python test-unix test-tcp test-sharded check fmt bench develop wheel soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

test-sharded: develop ## the same suite with everything split over four workers inside the process
	GT_AUTO_SHARD=1 GT_SHARD_MIN=0 GT_WORKERS=4 $(BIN)/python -m pytest tests -m "not local_only"

soak: develop ## long mode of random programs and simulation (set BUDGET and SIM)
	$(MAKE) test-rust BUDGET=600 SIM=600

check: $(BIN)/.tools ## formatting, lints and types, cheapest first
	cargo fmt --all --check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	cargo clippy --release --workspace --all-targets -- -D warnings
	$(BIN)/python -m mypy

fmt: $(BIN)/.tools ## format everything
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: develop ## the benchmarks, with PyTorch beside where it is importable
	$(BIN)/python benchmarks/spine.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/dynamic.py

develop: $(BIN)/.tools ## build the package into the virtual environment
	$(BIN)/maturin develop --release --quiet

wheel: $(BIN)/.tools ## build the wheel into dist/
	$(BIN)/maturin build --release --out dist

$(BIN)/.tools: requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

clean: ## remove what was built
	cargo clean
	rm -rf $(VENV) dist
