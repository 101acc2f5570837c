# Every target sets up what it needs, in .venv and $(TARGET), and a second run reuses it. A machine
# needs Rust, Python 3.11 or newer and a C compiler; scripts/preflight says so where one is missing.

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
VENV := .venv
VLLM_VENV := .venv-vllm-0.32
BIN := $(VENV)/bin
UV := $(BIN)/uv
UV_VERSION := 0.13.9

# Trust the certificates that the machine trusts, as cargo and pip do: uv brings its own otherwise.
export UV_SYSTEM_CERTS ?= 1

# The Python binding has no tests of its own in Rust: its tests are in Python.
RUST_TESTED := --locked --workspace --exclude kvferry-py --features kvferry/testing
# What the sanitizer needs is in the stable compiler, behind a switch.
ASAN := CARGO_TARGET_DIR="$(TARGET)/asan" RUSTC_BOOTSTRAP=1 RUSTFLAGS="$(RUSTFLAGS) -Zsanitizer=address"
HOST_TRIPLE = $(shell rustc --print host-tuple)
LOOM := CARGO_TARGET_DIR="$(TARGET)/loom" RUSTFLAGS="$(RUSTFLAGS) --cfg loom"

LINT_STAGES := fmt clippy rustdoc ruff mypy stubtest
TEST_STAGES := rust asan loom unit torch vllm

# Whatever ends up in the wheel. Folders are listed too: they change when a file is removed (not the
# topmost ones: `rust` is a target here).
WHEEL_SOURCES := Cargo.toml Cargo.lock pyproject.toml README.md LICENSE \
	$(shell find rust python -mindepth 1 -not -path '*/__pycache__*')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules

.PHONY: help
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

## For users

.PHONY: demo
demo: $(VENV)/.kvferry ## replay a workload (TRACE=FILE: your own): hit ratios, then its bytes moved and compared
	@mkdir -p out
	$(BIN)/kvferry replay $(if $(TRACE),"$(TRACE)") --json out/replay.json --plot out/hit_ratio.png
	$(BIN)/kvferry replay $(if $(TRACE),"$(TRACE)") --capacity 10% --move-bytes
	$(BIN)/kvferry replay $(if $(TRACE),"$(TRACE)") --capacity 10% --move-bytes --fault-rate 0.05

.PHONY: bench
bench: $(VENV)/.kvferry ## measure beside vLLM's manager and torch's copies, then the Rust benches
	@$(MAKE) --no-print-directory $(VLLM_VENV)/.kvferry || \
		echo "vLLM could not be installed here: measured beside OrderedDict instead"
	python=$(VLLM_VENV)/bin/python; test -e $(VLLM_VENV)/.kvferry || python=$(BIN)/python; \
		PYTHONPATH=tests "$$python" tests/benchmarks/bench_manager.py --write BENCHMARKS.md
	test ! -e $(VLLM_VENV)/.kvferry || \
		PYTHONPATH=tests $(VLLM_VENV)/bin/python tests/benchmarks/bench_transfers.py --write BENCHMARKS.md
	CARGO_TARGET_DIR="$(TARGET)" cargo bench --locked -p kvferry -p kvferry-host

.PHONY: wheel
wheel: $(VENV)/.tools ## build the release wheel and sdist into dist/, and try the wheel
	$(UV) pip install --quiet --python $(BIN)/python --group release
	rm -rf dist "$(TARGET)/wheel-venv"
	$(BIN)/maturin sdist --out dist
	PATH="$(CURDIR)/$(BIN):$$PATH" \
		$(BIN)/maturin build --release --interpreter $(BIN)/python --zig \
		--compatibility manylinux_2_28 --out dist
	$(UV) venv --quiet --python $(BIN)/python "$(TARGET)/wheel-venv"
	$(UV) pip install --quiet --python "$(TARGET)/wheel-venv/bin/python" dist/*.whl
	"$(TARGET)/wheel-venv/bin/python" scripts/smoke.py
	@ls -l dist

.PHONY: demo-vllm
demo-vllm: $(VLLM_VENV)/.kvferry ## rounds of prompts through a tiny model in vLLM, without kvferry and with it
	$(VLLM_VENV)/bin/python scripts/demo_vllm.py

## For developers

.PHONY: test
test: ## run every test: rust, asan, loom, unit, torch, vllm
	@MAKE="$(MAKE)" sh scripts/stages $(TEST_STAGES)

.PHONY: lint
lint: ## check formatting, lints, docs and types: fmt, clippy, rustdoc, ruff, mypy, stubtest
	@MAKE="$(MAKE)" sh scripts/stages $(LINT_STAGES)

.PHONY: rust
rust: ## Rust unit tests, integration tests, examples and doctests
	cargo test $(RUST_TESTED) --lib --bins --tests --examples
	cargo test $(RUST_TESTED) --doc

.PHONY: asan
asan: ## the copies and whatever else is unsafe, under AddressSanitizer
	$(ASAN) cargo test --locked -p kvferry-host --target "$(HOST_TRIPLE)" --lib --tests

.PHONY: loom
loom: ## model-check every lock-free protocol
	$(LOOM) cargo test --locked -p kvferry --features testing --lib
	$(LOOM) cargo test --locked -p kvferry-host --lib

.PHONY: unit
unit: $(VENV)/.kvferry ## Python tests of the built wheel
	$(BIN)/python -m pytest tests/unit tests/differential

.PHONY: torch
torch: $(VLLM_VENV)/.kvferry ## tests of transfers between torch's tensors on the CPU
	$(VLLM_VENV)/bin/python -m pytest tests/torch_cpu

.PHONY: vllm
vllm: $(VLLM_VENV)/.kvferry ## differential tests against vLLM's own managers, the plug-in under its scheduler
	$(VLLM_VENV)/bin/python -m pytest tests/vllm --ignore tests/vllm/test_engine.py --ignore tests/vllm/engine

.PHONY: engine
engine: $(VLLM_VENV)/.kvferry ## the plug-in in real vLLM engines on the CPU, byte for byte; not part of `make test`
	$(VLLM_VENV)/bin/python -m pytest tests/vllm/engine tests/vllm/test_engine.py -o timeout=0

.PHONY: stress
stress: $(VLLM_VENV)/.kvferry ## the long tests: threads, 10 million operations, a million jobs, the mutation check
	cargo test $(RUST_TESTED) --tests -- --ignored --test-threads 1
	KVFERRY_JOBS=1000000 cargo test --locked -p kvferry-host --test random_jobs -- --nocapture
	KVFERRY_DIFF_OPS=10000000 $(VLLM_VENV)/bin/python -m pytest tests/vllm -o timeout=0
	$(BIN)/python scripts/mutation_check.py

.PHONY: fuzz
fuzz: $(VENV)/.kvferry ## property tests through Python, with many more examples
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest tests/unit -m hypothesis -o timeout=0

.PHONY: fmt
fmt:
	cargo fmt --all --check

# The loom models are in the library, in test mode, and exist under loom alone.
.PHONY: clippy
clippy:
	cargo clippy --locked --workspace --all-targets --features kvferry/testing -- -D warnings
	$(LOOM) cargo clippy --locked -p kvferry --features testing --lib --profile test -- -D warnings
	$(LOOM) cargo clippy --locked -p kvferry-host --lib --profile test -- -D warnings

.PHONY: rustdoc
rustdoc:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

.PHONY: ruff
ruff: $(VENV)/.tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check

.PHONY: mypy
mypy: $(VENV)/.kvferry
	$(BIN)/mypy

.PHONY: stubtest
stubtest: $(VENV)/.kvferry
	MYPYPATH=python $(BIN)/python -m mypy.stubtest kvferry._core

.PHONY: clean
clean: ## remove everything that make has built
	rm -rf $(VENV) $(VLLM_VENV) "$(TARGET)" dist out

## Set-up. A stamp is written last, so whatever was interrupted is done again.

$(UV):
	python=$$(sh scripts/preflight) && "$$python" -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.tools: pyproject.toml | $(UV)
	$(UV) pip install --quiet --python $(BIN)/python --group dev
	@touch $@

$(TARGET)/wheel/.built: $(WHEEL_SOURCES) | $(VENV)/.tools
	rm -rf "$(TARGET)/wheel"
	$(BIN)/maturin build --release --interpreter $(BIN)/python --compatibility linux --out "$(TARGET)/wheel"
	@touch $@

$(VENV)/.kvferry: $(TARGET)/wheel/.built $(VENV)/.tools
	wheel=$$(echo "$(TARGET)"/wheel/*.whl) && \
		$(UV) pip install --quiet --python $(BIN)/python --reinstall-package kvferry "$$wheel[cli]"
	@touch $@

$(VLLM_VENV)/.complete: scripts/vllm_venv.py scripts/cuda_stubs.py $(wildcard scripts/vllm_locks/*) | $(UV)
	$(BIN)/python scripts/vllm_venv.py --uv $(UV) $(VLLM_VENV)
	@touch $@

$(VLLM_VENV)/.kvferry: $(VLLM_VENV)/.complete $(TARGET)/wheel/.built
	$(UV) pip install --quiet --python $(VLLM_VENV)/bin/python --group test \
		--reinstall-package kvferry "$(TARGET)"/wheel/*.whl
	@touch $@
