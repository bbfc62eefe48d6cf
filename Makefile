# make demo   see it work (Rust and a C compiler)
# make demo-rocketmq    the same with RocketMQ's protocol (a C++ compiler and cmake too)
# make test   all tests, with real Pulsar and RocketMQ servers (Java 17 and Maven; a C++ compiler and cmake, because
#             gRPC's core is compiled once; all installed when root on Debian/Ubuntu)
# make lint   format, clippy, documentation, lowest Rust version, licences
# make soak SEEDS=100000    the seeded simulations of both engines for longer
# make bench  the benchmarks

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
export CARGO_TARGET_DIR ?= $(HOME)/.cache/threadmq-target

SEEDS ?= 10000
# What the soak runs, and what it reads its number of seeds from.
SOAK ?= pulsar::engine::tests::simulation::simulation rocketmq::engine::tests::simulation::simulation
SOAK_VARIABLE ?= THREADMQ_SEEDS

.PHONY: setup setup-build setup-all setup-lint demo demo-rocketmq test soak bench
.PHONY: lint lint-format lint-clippy lint-docs lint-licences lint-msrv lint-scripts

setup:
	@tests/setup build cxx server

setup-build:
	@tests/setup build

setup-all:
	@tests/setup build cxx

setup-lint:
	@tests/setup build cxx lint

demo: setup-build
	cargo run --locked --release --features cli --bin threadmq -- demo

# The profile and features of the tests, so that gRPC's core is compiled once.
demo-rocketmq: setup-all
	cargo run --locked --all-features --bin threadmq -- demo rocketmq

# tests/run sees to Java and Maven itself, and says which suites it had to leave out without them.
test: setup-all
	tests/run

# In the dev profile, so that gRPC's core is not compiled once more; this crate with all optimisations. A name that
# matches no test would pass: each has to say that it ran.
soak: setup-all
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	$(SOAK_VARIABLE)=$(SEEDS) CARGO_PROFILE_DEV_OPT_LEVEL=3 \
	  cargo test --locked --all-features --lib -- --exact $(SOAK) --nocapture 2>&1 | tee "$$log"; \
	for name in $(SOAK); do \
	  grep -q "^test $$name \.\.\. ok" "$$log" || { echo "soak: $$name did not run"; exit 1; }; \
	done

lint: lint-format lint-clippy lint-docs lint-licences lint-msrv lint-scripts

lint-format: setup-lint
	cargo fmt --all --check

lint-clippy: setup-lint
	cargo clippy --locked --all-targets --all-features -- -D warnings
	cargo clippy --locked --lib -- -D warnings
	cargo clippy --locked --lib --no-default-features --features pulsar -- -D warnings
	cargo clippy --locked --lib --no-default-features --features rocketmq -- -D warnings

lint-docs: setup-lint
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --all-features

lint-licences: setup-lint
	tests/licences

lint-msrv: setup-lint
	tests/msrv

lint-scripts:
	@if command -v shellcheck > /dev/null; then \
	  shellcheck -x benches/*.sh benches/peers/* tests/run tests/setup tests/msrv tests/licences tests/servers/pulsar tests/servers/rocketmq tests/servers/lib.sh .ci/run; \
	fi

bench: setup-build
	cargo bench --locked --features bench,testkit
