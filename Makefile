# The entry to all daily tasks. `make` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

CARGO ?= cargo
# Folder into which `make install` installs; packagers put DESTDIR before it.
PREFIX ?= /usr/local
DESTDIR ?=
# Seconds that `make fuzz` gives each decoder.
FUZZ_SECONDS ?= 20
# Minutes that `make soak` takes.
MINUTES ?= 60
# Number of seeds that `make sim` runs.
SEEDS ?= 100000

export PREFIX DESTDIR FUZZ_SECONDS MINUTES
# As pip has it (bindings/python/packaging/compiled.py): PyO3 is built anew for another interpreter.
export PYO3_PYTHON = $(shell python3 -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))')
# Programs that scripts/setup has put there.
export PATH := $(CURDIR)/target/tools/bin:$(PATH)
export CARGO_TERM_COLOR ?= auto
export CARGO_NET_RETRY ?= 5

.PHONY: help setup setup-tests build demo check test test-all bench fuzz sim soak planted guide lint docs install uninstall wheels release-archive clean

help: ## List these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

setup: ## Install what building needs and is missing (Debian packages; root or sudo)
	@scripts/setup

setup-tests: ## Install also what the tests need and is missing
	@scripts/setup --tests

build: setup ## Build everything, optimised, into target/release
	$(CARGO) build --release --workspace --locked
	@bindings/link

demo: build ## Start the platform and show it on real input, with measured latencies
	@demo/run

check: setup-tests ## Check format, clippy, and the unit tests of what changed: before each commit, minutes when built
	@scripts/check

test: setup-tests ## Test every kind of promise once, as CI does: 10 to 13 minutes when built; ends with `N passed, N failed`
	@scripts/test

test-all: setup-tests ## Test everything: also a second Python, planted bugs, fault counts, virtual machines, REST fuzzing: half an hour when built
	@scripts/test --all

bench: build ## Run every benchmark, over shared memory and libfabric, into bench/results
	@scripts/bench

fuzz: ## Fuzz each decoder for FUZZ_SECONDS (20); needs nightly Rust and cargo-fuzz
	@scripts/fuzz

sim: ## Run SEEDS (100000) sites under faults in virtual time; a million takes about an hour on two cores
	$(CARGO) run --release --locked --package hotlease-sim -- --seeds $(SEEDS)

soak: ## Break real processes for MINUTES (60), with larger counts and a new seed each round
	@scripts/soak

planted: setup-tests ## Plant every bug that a test is there for, one at a time, and see that it fails: about an hour
	@tests/planted

guide: build ## Follow docs/operating.md, docs/sandboxes.md and docs/slurm.md word for word on a bare Debian, in a container; root, needs debootstrap and systemd-container
	@scripts/follow-guide

lint: ## Check format, clippy, crate levels, unsafe code, file lengths, names, links, snippets
	@scripts/lint

docs: ## Build the API documentation into target/doc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps --locked

install: build ## Install programs, libraries, headers, CMake and pkg-config files under PREFIX
	@bindings/install "$(PREFIX)" "$(DESTDIR)"

uninstall: ## Remove from PREFIX what `make install` has installed there
	@bindings/uninstall "$(PREFIX)" "$(DESTDIR)"

wheels: build ## Make a wheel for each Python here, with programs, headers and libraries, checked and tested, into target/dist
	@scripts/package wheels

release-archive: build ## Make the archive for C, C++ and Fortran users, tested, into target/dist
	@scripts/package archive

clean: ## Remove everything that was built
	$(CARGO) clean
	rm -rf fuzz/target bench/results build
