.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := bash
# Bytecode lies beside the packages, not among the sources. With it a replica's front is imported in 0.8 s of CPU instead of 2.4, and the
# unit tests are collected in 14 s instead of 37.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/pycache
unexport PYTHONDONTWRITEBYTECODE
# Binaries of the GPU ops lie there too: with them `verify` reads what it compiled the last time, if nothing changed.
export TRITON_CACHE_DIR := $(CURDIR)/.venv/triton
export OMP_NUM_THREADS ?= 2
export GOMP_SPINCOUNT ?= 1000
PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv
START := $(shell date +%s)
PYTEST := $(BIN)/pytest --durations 10
# Tests on a cluster wait for three quarters of their time, so that more of them run than there are cores.
WORKERS ?= 4
# The gate compiles the GPU ops on the locked Triton and on this one, which a user's PyTorch may bring.
OLDER_TRITON := 3.7.1
OLDER := PYTHONPATH=.venv/triton-$(OLDER_TRITON) TRITON_CACHE_DIR=$(CURDIR)/.venv/triton-cache-$(OLDER_TRITON) $(BIN)/python -P -m pagoda_kernels.aot --ledger kernels/pagoda_kernels/ledger-$(OLDER_TRITON).json
WORDS := PYTHONPATH=tests $(BIN)/python -P -m support.suite.words
POOL := $(PYTEST) --fork $(WORKERS)

.PHONY: help setup lint lint-types lint-rest test test-unit test-deep test-cluster test-ci test-full full-planted full-properties full-sweeps full-clients demo demo-down generate verify words images bench lock clean

help:  ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/.stamp  ## Install everything into .venv (needs Python 3.11+ and network)

.venv/.stamp: requirements/dev.txt pyproject.toml hatch_build.py kernels/pagoda_kernels/cpu/build.py $(wildcard kernels/pagoda_kernels/cpu/src/*)
	test -x $(UV) || { $(PYTHON) -m venv .venv && $(BIN)/pip install --quiet --disable-pip-version-check uv; }
	$(UV) pip sync --quiet --require-hashes requirements/dev.txt
	$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

lint: setup  ## Format check, lint, types, import contracts, shell scripts, words, generated files
	$(MAKE) --no-print-directory -j 2 --output-sync=target lint-types lint-rest

lint-types:
	$(BIN)/mypy

lint-rest:
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/bandit -q -r -ll -c pyproject.toml contracts kube sizing placement kernels daemon operator replay gateway fetch cli devcluster bench
	$(BIN)/lint-imports
	$(BIN)/shellcheck .ci/run $$(git ls-files '*.sh')
	$(WORDS)
	$(MAKE) --no-print-directory verify

test-unit: setup  ## Unit tests: nothing but Python (budget: 2 min on 2 cores)
	$(PYTEST) --fork 3 -m "not deep" --budget "make test-unit=120" tests/unit tests/equipment

test: lint test-unit  ## All of it: lint, unit, parity, control plane and e2e on a dev cluster (root; budget: 25 min on 2 cores)
	$(MAKE) --no-print-directory -j 2 --output-sync=target test-deep test-cluster
	@echo "make test: $$(($$(date +%s) - $(START))) s, its budget is 1500 s"

# This tier and the next one run beside one another in `make test`, so each has a budget of CPU. Their time of the clock counts in its 25 min.
# Many of these tests wait for a process that they have started, so there is one worker more than there are cores.
test-deep: setup  ## Tests that compute: properties at size, parity with other libraries, hostile requests
	$(PYTEST) --fork 3 -m "not unit and not extras and not sweep" --budget "make test-deep=700 CPU" tests/unit tests/equipment tests/parity tests/security

test-cluster: setup  ## Tests on a dev cluster: control plane and e2e (root)
	name=test-$$$$; trap 'code=$$?; $(BIN)/pagoda-devcluster down --name $$name || code=1; exit $$code' EXIT; \
	  $(BIN)/pagoda-devcluster up --name $$name --provider native --install && \
	  PAGODA_TEST_CLUSTER=$$name $(POOL) --budget "make test-cluster=600 CPU" tests/controlplane tests/e2e

test-ci: setup  ## Each extra alone in a clean environment; third-party clients; faults and sweeps at CI size (root; budget: 15 min on 2 cores)
	$(POOL) -m "extras or sweep or clients" --budget "make test-ci=900" tests/extras tests/clients tests/sweeps tests/faults

test-full: SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
test-full: setup  ## Planted faults; properties on ten times as many new examples; sweeps at full size; every third-party client; every hostile request at a real model (hours)
	@echo "Properties are tried on the examples of SEED=$(SEED); make test-full SEED=$(SEED) draws the same."
	$(MAKE) -k --no-print-directory SEED=$(SEED) full-planted full-properties full-sweeps full-clients

full-planted:
	$(PYTEST) -n 2 --dist load -m full tests/planted --all

full-properties:
	$(PYTEST) --fork 2 -m "hypothesis or deep" --hypothesis-profile full --hypothesis-seed $(SEED) --timeout 7200 tests/unit tests/security

full-sweeps:
	$(PYTEST) -m sweep tests/faults tests/sweeps tests/controlplane/operator/test_bad_objects.py tests/e2e/devcluster --all

full-clients:
	$(PYTEST) -m "clients or deep" tests/clients tests/security/test_hostile.py --all

demo: setup  ## A cluster, an install, a model and a chat (root)
	$(BIN)/pagoda-demo up

demo-down: setup  ## Remove all that the demo made
	$(BIN)/pagoda-demo down

.venv/triton-$(OLDER_TRITON): .venv/.stamp
	rm -rf $@
	$(UV) pip install --quiet --no-deps --target $@ triton==$(OLDER_TRITON)
	touch $@

generate: setup .venv/triton-$(OLDER_TRITON)  ## Rewrite generated files: protobuf code, CRDs, chart CRDs, tables in docs, facts of GPU binaries
	$(BIN)/pagoda-generate .
	$(BIN)/python -P -m pagoda_sizing.generate docs/sizing.md
	$(BIN)/python -P -m pagoda_daemon.api.routes.apidoc docs/api.md
	$(BIN)/python -P -m pagoda_daemon.process.configdoc docs/daemon-config.md
	$(BIN)/python -P -m pagoda_kernels.aot
	$(OLDER)

verify: setup .venv/triton-$(OLDER_TRITON)  ## Fail if a generated file is stale (writes nothing)
	$(BIN)/pagoda-generate --check .
	$(BIN)/python -P -m pagoda_sizing.generate --check docs/sizing.md
	$(BIN)/python -P -m pagoda_daemon.api.routes.apidoc --check docs/api.md
	$(BIN)/python -P -m pagoda_daemon.process.configdoc --check docs/daemon-config.md
	$(BIN)/python -P -m pagoda_kernels.aot --check
	$(OLDER) --check

words: setup  ## Record that docs and messages break fewer rules of plain English (WHAT=docs/engine.md lists places)
	$(WORDS) --record $(if $(WHAT),--list $(WHAT))

images: setup  ## Build the images with buildah (root; the daemon's with its 5.3 GB of dependencies)
	$(BIN)/pagoda-demo images --full

bench: setup  ## Measure, print JSON (docs/benchmarks.md)
	for script in bench/*.py; do echo "== $$script" >&2; $(BIN)/python -P $$script || [ $$? -eq 2 ] || exit 1; done  # 2: no such device here

lock: setup  ## Resolve requirements/*.txt anew
	bash requirements/lock.sh

clean:  ## Remove .venv and caches (a dev cluster goes by demo-down)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
