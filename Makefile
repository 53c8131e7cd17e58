# What people and CI type. `make help` lists it.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DISTS := plugins core testing $(patsubst %/pyproject.toml,%,$(wildcard plugins_*/pyproject.toml))
STAMP := $(VENV)/.litz-installed
JOBS ?= auto
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help .venv demo test test-gpu test-all test-compilers bench conformance fuzz lint format clean

help: ## list the targets
	@grep -hE '^[a-zA-Z_.-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

.venv: $(STAMP) ## make the virtual environment with the tested versions (once; quick when done)

# torch first: it decides which CPU or CUDA build everything else has to agree with.
$(STAMP): constraints.txt $(addsuffix /pyproject.toml,$(DISTS))
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q -c constraints.txt setuptools wheel numpy triton transformers \
	    pytest pytest-xdist hypothesis expecttest mypy ruff import-linter redis
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation $(addprefix -e ./,$(DISTS))
	touch $@

demo: $(STAMP) ## GPT-2 and ResNet-50, eager against litz: time, kernels, error against float64
	$(BIN)/python -m litz.demo $(ARGS)

test: $(STAMP) ## every test that needs no GPU, in parallel
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not gpu and not gpu2" $(ARGS) tests

lint: $(STAMP) ## style, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## put the sources into the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The GPU machine has torch, Triton, setuptools and wheel, and no package registry: nothing is fetched here, and
# PYTHON names the interpreter that has them.
test-gpu: ## the tests that need a CUDA device (PYTHON=... names the interpreter that has torch)
	rm -rf $(addsuffix /build,$(DISTS))
	$(PYTHON) -m pip install -q --no-index --no-build-isolation --no-deps --force-reinstall $(addprefix ./,$(DISTS))
	$(PYTHON) -m pytest -m "gpu or gpu2" $(ARGS) tests

test-all: test test-gpu ## both

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

clean: ## remove what was built; keeps .venv
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	rm -rf $(foreach d,$(DISTS),$(d)/build $(d)/dist $(d)/src/*.egg-info)
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
