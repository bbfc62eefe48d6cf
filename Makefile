# make demo   see it work (Rust and a C compiler)
# make test   all tests, with a real Pulsar server (Java 17 and Maven; installed when root on Debian/Ubuntu)
# make lint   format, clippy, documentation, lowest Rust version, licences
# make soak SEEDS=100000    the seeded simulation for longer
# make bench  the benchmarks

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
export CARGO_TARGET_DIR ?= $(HOME)/.cache/threadmq-target

SEEDS ?= 10000
# What the soak runs, and what it reads its number of seeds from.
SOAK ?= --all-features --lib simulation
SOAK_VARIABLE ?= THREADMQ_SEEDS

.PHONY: setup setup-build setup-lint demo test soak bench
.PHONY: lint lint-format lint-clippy lint-docs lint-licences lint-msrv lint-scripts

setup:
	@tests/setup build server

setup-build:
	@tests/setup build

setup-lint:
	@tests/setup build lint

demo: setup-build
	cargo run --locked --release --features cli --bin threadmq -- demo

# tests/run sees to Java and Maven itself, and says which suites it had to leave out without them.
test: setup-build
	tests/run

# A filter that matches no test would pass: count them.
soak: setup-build
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	$(SOAK_VARIABLE)=$(SEEDS) cargo test --locked --release $(SOAK) -- --nocapture 2>&1 | tee "$$log"; \
	grep -q '^test result: ok\. [1-9]' "$$log" || { echo 'soak: no test ran'; exit 1; }

lint: lint-format lint-clippy lint-docs lint-licences lint-msrv lint-scripts

lint-format: setup-lint
	cargo fmt --all --check

lint-clippy: setup-lint
	cargo clippy --locked --all-targets --all-features -- -D warnings

lint-docs: setup-lint
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --all-features

lint-licences: setup-lint
	tests/licences

lint-msrv: setup-lint
	tests/msrv

lint-scripts:
	@if command -v shellcheck > /dev/null; then \
	  shellcheck -x tests/run tests/setup tests/msrv tests/licences tests/servers/pulsar tests/servers/rocketmq tests/servers/lib.sh .ci/run; \
	fi

bench: setup-build
	cargo bench --locked --all-features
