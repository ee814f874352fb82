# One door for people and for CI. `make test` and `make demo` install what they need and say so.
# Everything uses the release profile, so that the C libraries are built once.

VENV := build/venv
PYTHON := $(VENV)/bin/python
TERRACE := $(or $(CARGO_TARGET_DIR),target)/release/terrace
export TERRACE_BIN ?= $(abspath $(TERRACE))

.PHONY: build demo test test-rust test-e2e ci fmt fmt-check lint doc fuzz soak bench clean cargo

build: cargo
	cargo build --release --workspace

cargo:
	@command -v cargo >/dev/null || { \
	  echo "make: cargo is missing; install the Rust toolchain with rustup, then run this again" >&2; \
	  exit 1; }
	@tools/need-packages gcc:gcc

demo: build
	@tools/need-packages redis-server:redis-server
	$(TERRACE) demo $(ARGS)

test: test-rust test-e2e

test-rust: cargo
	cargo test --release --workspace

# `make test-e2e ARGS="-k fork_reads"` runs one hazard.
test-e2e: build $(VENV)/ready
	@tools/need-packages gcc:gcc redis-server:redis-server
	cd e2e && ../$(PYTHON) -m pytest $(ARGS)

$(VENV)/ready: e2e/requirements.txt
	@tools/need-packages python3:python3 python3-venv:python3-venv
	@echo "make: installing $$(tr '\n' ' ' < $<)into $(VENV)"
	python3 -m venv --clear $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

ci:
	bash .ci/run

fmt: $(VENV)/ready
	cargo fmt --all
	$(VENV)/bin/ruff format e2e

fmt-check: $(VENV)/ready
	cargo fmt --all --check
	$(VENV)/bin/ruff format --check e2e

lint: cargo $(VENV)/ready
	cargo clippy --release --workspace --all-targets -- -D warnings
	$(VENV)/bin/ruff check e2e
	cd e2e && ../$(VENV)/bin/mypy .

doc: cargo
	RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps --workspace

# RUNS=10000000 for the long run; a failure prints the line that repeats it.
fuzz: cargo
	TERRACE_FUZZ_RUNS=$(or $(RUNS),1000000) \
	  cargo test --release -p terrace-store --lib fuzz -- --nocapture

# PAGES page moves under --torture, verified; ARGS="--only dram" for some of the tier sets.
soak: build $(VENV)/ready
	@tools/need-packages gcc:gcc
	$(PYTHON) e2e/soak.py --pages $(or $(PAGES),100000000) --json $(or $(JSON),build/soak.json) $(ARGS)

bench: build
	$(TERRACE) bench plan
	$(TERRACE) bench rest

clean:
	rm -rf build target
