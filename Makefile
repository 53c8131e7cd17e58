# What people and CI type. `make help` lists it.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DISTS := plugins core testing $(patsubst %/pyproject.toml,%,$(wildcard plugins_*/pyproject.toml))
STAMP := $(VENV)/.litz-installed
DOCS_STAMP := $(VENV)/.docs-installed
INSTALL = $(BIN)/python -m pip install -q -c constraints.txt $(INSTALL_ARGS)
INSTALL_ARGS ?=
JOBS ?= auto
ARGS ?=

# A process that may not keep litz's compiled modules compiles them again: half a second of each of the tests' hundreds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help .venv browser demo dist test test-changed test-nightly test-gpu test-all test-compilers bench conformance fuzz mutants stress lint docs links figures picture format clean

help: ## list the targets
	@grep -hE '^[a-zA-Z_.-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

.venv: $(STAMP) ## make the virtual environment with the tested versions (once; quick when done)

# torch first: it decides which CPU or CUDA build everything else has to agree with.
$(STAMP): constraints.txt $(addsuffix /pyproject.toml,$(DISTS))
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) setuptools wheel numpy triton transformers \
	    pytest pytest-xdist hypothesis expecttest mypy ruff import-linter redis aiohttp
	$(INSTALL) --no-build-isolation $(addprefix -e ./,$(DISTS))
	touch $@

browser: ## Debian's Chromium and ChromeDriver, for the tests of the report's pages (needs root; quick when done)
	(command -v chromium && command -v chromedriver) > /dev/null || \
	    (apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium chromium-driver > /dev/null)

demo: $(STAMP) ## GPT-2 and ResNet-50, eager against litz: time, kernels, error against float64
	$(BIN)/python -m litz_tools.demo $(ARGS)

dist: $(STAMP) ## wheels and sdists of all dists in dist/, tried in a fresh environment (ARGS=--no-demo is quicker)
	$(BIN)/python -m release.build
	$(BIN)/python -m release.trial $(ARGS)

# Threads that wait for work do not spin: other tests need the processors. A worker that dies is a failure of its test:
# where pytest-xdist starts another one, a run of `--dist loadgroup` was seen not to end.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --max-worker-restart 0 --durations=20

IN_CI := not gpu and not gpu2 and not thorough and not nightly
SINCE ?= main

test: $(STAMP) ## the tests that need no GPU, in parallel, but for more of the same (make test-nightly, make test-all)
	$(PYTEST) -m "$(IN_CI)" $(ARGS) tests

test-changed: $(STAMP) ## of these tests, those that a change reaches, the nearest first (SINCE=main WITHIN=2 for near ones)
	files=$$($(BIN)/python -m tests.changed $(SINCE) $(if $(WITHIN),--within $(WITHIN))) && \
	    { test -z "$$files" || $(PYTEST) -m "$(IN_CI)" $(ARGS) $$files; }

test-nightly: $(STAMP) ## what CI leaves out for its time: tests of benchmarks, pages and releases, and long forms
	$(PYTEST) -m "nightly and not gpu and not gpu2" $(ARGS) tests

stress: $(STAMP) ## 16 threads and 4 processes at once for ten minutes: calls, and how many were wrong (ARGS="--seconds 60 --device cuda")
	PYTHONPATH=tests OMP_WAIT_POLICY=passive $(BIN)/python -m stress.program $(ARGS)

lint: $(STAMP) ## style, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DOCS_STAMP) ## the documentation's site, in build/site; a dead link or a page without an entry is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --config-file website/mkdocs.yml

# What only the site needs, beside what .venv has.
$(DOCS_STAMP): $(STAMP) website/requirements.txt
	$(INSTALL) -r website/requirements.txt
	touch $@

links: $(STAMP) ## ask for every link of README and docs that leads to another site (needs the network; not in CI)
	$(BIN)/python -m website.external_links

figures: $(STAMP) ## compare every figure of README and docs/benchmarks with benchmarks/results (ARGS=--write makes them anew)
	$(BIN)/python -m website.figures $(ARGS)
	$(BIN)/python -m website.from_inductor

picture: $(STAMP) ## README's picture of a report, anew (needs Chromium)
	$(BIN)/python -m website.picture

format: $(STAMP) ## put the sources into the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The GPU machine has torch, Triton, setuptools and wheel, and no package registry: nothing is fetched here, and
# PYTHON names the interpreter that has them.
test-gpu: ## the tests that need a CUDA device (PYTHON=... names the interpreter that has torch)
	rm -rf $(addsuffix /build,$(DISTS))
	$(PYTHON) -m pip install -q --no-index --no-build-isolation --no-deps --force-reinstall $(addprefix ./,$(DISTS))
	$(PYTHON) -m pytest -m "gpu or gpu2" $(ARGS) tests

test-all: $(STAMP) test-gpu ## every test, those that need a CUDA device too
	$(PYTEST) -m "not gpu and not gpu2" $(ARGS) tests

# On a machine without a registry PYTHON=... names the interpreter, with the dists that `make test-gpu` has installed.
OWN_PYTHON := $(filter-out file,$(origin PYTHON))
test-compilers: $(if $(OWN_PYTHON),,$(STAMP)) ## the C++ generator with every g++ and clang found, for every level of this processor
	$(if $(OWN_PYTHON),$(PYTHON),$(BIN)/python) -m litz_testing.compilers $(ARGS)

bench: ## litz against eager and TorchInductor (PYTHON=... names the interpreter)
	$(PYTHON) -m benchmarks $(ARGS)

conformance: $(STAMP) ## PyTorch's own operator samples, compiled, against eager (ARGS="--all-dtypes --peer inductor")
	$(BIN)/python -m litz_testing.conformance $(ARGS)

fuzz: $(STAMP) ## random programs against eager (ARGS="--seed 1 --programs 20000"); a failure becomes a script
	$(BIN)/python -m litz_testing.fuzz $(ARGS)

mutants: $(STAMP) ## build faults into a copy of litz, one at a time, and see which their tests miss (ARGS="000 --jobs 2")
	$(BIN)/python -m tests.mutants $(ARGS)

clean: ## remove what was built; keeps .venv
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	rm -rf $(foreach d,$(DISTS),$(d)/build $(d)/dist $(d)/src/*.egg-info)
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
