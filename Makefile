.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := bash
# Bytecode lies beside the packages, not among the sources. With it a replica's front is imported in 0.8 s of CPU instead of 2.4, and the
# unit tests are collected in 12 s instead of 28.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/pycache
unexport PYTHONDONTWRITEBYTECODE
export OMP_NUM_THREADS ?= 2
export GOMP_SPINCOUNT ?= 1000
PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv
PYTEST := $(BIN)/pytest

.PHONY: help setup lint test test-unit test-e2e test-ci test-full demo demo-down generate verify images bench lock clean

help:  ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/.stamp  ## Install everything into .venv (needs Python 3.11+ and network)

.venv/.stamp: requirements/dev.txt pyproject.toml hatch_build.py kernels/pagoda_kernels/cpu/build.py $(wildcard kernels/pagoda_kernels/cpu/src/*)
	test -x $(UV) || { $(PYTHON) -m venv .venv && $(BIN)/pip install --quiet --disable-pip-version-check uv; }
	$(UV) pip sync --quiet --require-hashes requirements/dev.txt
	$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

lint: setup  ## Format check, lint, types, import contracts, shell scripts, generated files
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/bandit -q -r -ll -c pyproject.toml contracts sizing kernels daemon operator gateway fetch cli devcluster bench
	$(BIN)/lint-imports
	$(BIN)/shellcheck .ci/run $$(git ls-files '*.sh')
	$(MAKE) --no-print-directory verify

test-unit: setup  ## Unit tests: nothing but Python (3 min on 2 cores)
	$(PYTEST) -n 2 --dist loadfile -m "not deep" tests/unit

test: lint test-unit  ## All of it: lint, unit, parity, control plane and e2e on a dev cluster (root; 50 minutes on 2 cores)
	$(PYTEST) -n 2 --dist loadfile -m deep tests/unit
	$(BIN)/pagoda-devcluster up --name test --provider native --install
	PAGODA_TEST_CLUSTER=test $(PYTEST) tests --ignore tests/unit; code=$$?; $(BIN)/pagoda-devcluster down --name test; exit $$code

test-e2e: setup  ## Only the scenarios on a dev cluster (root)
	$(PYTEST) tests/e2e

test-ci: setup  ## Each extra alone in a clean environment; faults and sweeps at CI size
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "extras or sweep" tests/extras tests/sweeps tests/faults tests/controlplane/operator/test_bad_objects.py

test-full: setup  ## Sweeps at full size: the operator is killed at every request of a service's life (hours)
	$(PYTEST) -m sweep tests/faults tests/controlplane/operator/test_bad_objects.py tests/e2e/devcluster --all

demo: setup  ## A cluster, an install, a model and a chat (root)
	$(BIN)/pagoda-demo up

demo-down: setup  ## Remove all that the demo made
	$(BIN)/pagoda-demo down

generate: setup  ## Rewrite generated files: protobuf code, CRDs, chart CRDs, tables in docs
	$(BIN)/pagoda-generate .
	$(BIN)/python -P -m pagoda_sizing.generate docs/sizing.md
	$(BIN)/python -P -m pagoda_daemon.api.apidoc docs/api.md

verify: setup  ## Fail if a generated file is stale (writes nothing)
	$(BIN)/pagoda-generate --check .
	$(BIN)/python -P -m pagoda_sizing.generate --check docs/sizing.md
	$(BIN)/python -P -m pagoda_daemon.api.apidoc --check docs/api.md

images: setup  ## Build the images with buildah (root; the daemon's with its 5.3 GB of dependencies)
	$(BIN)/pagoda-demo images --full

bench: setup  ## Measure, print JSON (docs/benchmarks.md)
	for script in bench/*.py; do echo "== $$script" >&2; $(BIN)/python -P $$script || exit 1; done

lock: setup  ## Resolve requirements/*.txt anew
	bash requirements/lock.sh

clean:  ## Remove .venv and caches (a dev cluster goes by demo-down)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
