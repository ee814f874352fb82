# One door for people and for CI. `make test` and `make demo` install what they need and say so.
# Everything uses the release profile, so that the C libraries are built once.

VENV := build/venv
PYTHON := $(VENV)/bin/python
TERRACE := $(or $(CARGO_TARGET_DIR),target)/release/terrace
export TERRACE_BIN ?= $(abspath $(TERRACE))

.PHONY: build demo test test-rust test-e2e test-older-kernel sim soak-sim compat ci fmt fmt-check lint doc fuzz soak \
	bench bench-paper bench-slowdown clean cargo duckdb

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

# Properties are tried on the same cases every time; SEED=n on others, `make fuzz` on new ones.
test-rust: cargo
	PROPTEST_RNG_SEED=$(or $(SEED),1) cargo test --release --workspace

# `make test-e2e ARGS="-k fork_reads"` runs one hazard. Most tests wait more than they work, so three
# run at a time (JOBS=n).
test-e2e: build $(VENV)/ready duckdb
	@tools/need-packages gcc:gcc redis-server:redis-server memcached:memcached
	cd e2e && ../$(PYTHON) -m pytest -n $(or $(JOBS),3) --dist loadgroup $(ARGS)

# The same with pages taken out as on kernels without UFFDIO_MOVE (docs/older-kernels.md).
test-older-kernel: export TERRACE_MOVER := stop
test-older-kernel: test-e2e

# Real programs under torture (docs/compatibility.md). JSON=path, ONLY=name,..., QUICK=1, SEED=n,
# JOBS=n. What is not installed is a skipped row.
compat: build $(VENV)/ready duckdb
	@cd e2e && ../tools/need-packages $$(PACKAGES=1 ../$(PYTHON) -m compat) || \
	  echo "make: rows whose program is missing are skipped" >&2
	@cd e2e && JSON="$(if $(JSON),$(abspath $(JSON)))" ONLY="$(ONLY)" QUICK="$(QUICK)" \
	  SEED="$(SEED)" JOBS="$(JOBS)" ../$(PYTHON) -m compat

# What uses it is skipped where it cannot be had.
duckdb: $(VENV)/ready
	@$(PYTHON) -c "import duckdb" 2>/dev/null || { \
	  echo "make: installing $$(cat e2e/compat/requirements.txt) into $(VENV)"; \
	  $(PYTHON) -m pip install --quiet --disable-pip-version-check \
	    -r e2e/compat/requirements.txt; } || true

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
	cargo test --release --workspace --lib

# PAGES page moves under --torture, verified; ARGS="--only dram" for some of the tier sets.
soak: build $(VENV)/ready
	@tools/need-packages gcc:gcc
	$(PYTHON) e2e/soak.py --pages $(or $(PAGES),100000000) --json $(or $(JSON),build/soak.json) $(ARGS)

# The runtime against a fake kernel (docs/simulation.md). `make test-rust` runs 20000 seeds of it.
# SEED=123 prints one seed step by step; FROM=1000000 begins elsewhere.
SIMULATION := cargo test --release -p terrace-preload --test simulation --
sim: cargo
	$(SIMULATION) $(if $(SEED),--seed $(SEED),--runs $(or $(RUNS),20000) --from $(or $(FROM),0) --pairs)

# Until a seed fails or it is interrupted.
soak-sim: cargo
	$(SIMULATION) --soak --from $(or $(FROM),1000000)

bench: build
	@tools/need-packages redis-server:redis-server
	$(TERRACE) bench plan
	$(TERRACE) bench rest

# TierScape's evaluation, the kernel's zswap beside every tier set (docs/results/README.md): hours, as
# root, on a machine that does nothing else. Interrupted, it goes on. ARGS="--quick --workloads redis"
bench-paper: build duckdb
	@tools/need-packages redis-server:redis-server memcached:memcached
	TERRACE_PYTHON=$(abspath $(PYTHON)) $(TERRACE) bench paper $(ARGS)

# --max-slowdown against the best fixed alpha, on Redis, memcached, a graph and a program that
# allocates (docs/slowdown.md): hours, on a machine that does nothing else. ARGS="--quick"
bench-slowdown: build
	@tools/need-packages redis-server:redis-server memcached:memcached
	$(TERRACE) bench slowdown $(ARGS)

clean:
	rm -rf build target
