# `make` alone prints this list. Every target that needs the environment makes it itself.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.tvmstack-setup
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup check format test test-slow test-faults test-gpu-sim demo bench bench-quick docs wheel clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything for development; quick the second time

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@if test -d .git; then $(BIN)/pre-commit install >/dev/null || echo "pre-commit hook not installed (no write access to .git/hooks)"; fi
	@touch $@

check: $(STAMP) ## format, lint, types, room contract, fresh reference page
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.reference --check

format: $(STAMP) ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(STAMP) ## the tests that need no real trials: a few minutes on two cores
	$(PYTEST) -m "not slow and not faults and not gpu_sim"

test-slow: $(STAMP) ## real models and real trials
	$(PYTEST) -m slow

test-faults: $(STAMP) ## kills, full disks, damaged files, a PostgreSQL server that goes away; under 10 minutes
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql; } || \
		echo "PostgreSQL is missing and could not be installed: its tests are skipped"
	$(PYTEST) -m faults

test-gpu-sim: $(STAMP) ## every GPU kernel of four networks on PoCL, compared with numpy; a few minutes
	@clinfo -l 2>/dev/null | grep -q Portable || ls /etc/OpenCL/vendors/pocl.icd >/dev/null 2>&1 || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends pocl-opencl-icd; } || \
		echo "PoCL is missing and could not be installed: its tests are skipped"
	$(PYTEST) -m gpu_sim

demo: $(STAMP) ## a real model: scan, compile, tune two minutes, rebuild, verify, bench
	$(BIN)/python -m scripts.demo

bench: $(STAMP) ## all benchmark models, untuned and tuned 10 minutes each; ARGS=--resume goes on
	$(BIN)/python -m benchmarks.run --tune 10m $(ARGS)

bench-quick: $(STAMP) ## the small benchmark models, untuned and tuned briefly, in under 10 minutes
	$(BIN)/python -m benchmarks.run --quick $(ARGS)

docs: $(STAMP) ## regenerate docs/reference.md from the commands' own help
	$(BIN)/python -m scripts.reference

wheel: $(STAMP) ## build wheel and sdist into dist/
	$(BIN)/python -m build

clean: ## remove what builds and tools leave behind; keeps .venv and .cache
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
