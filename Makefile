# Each target works in a clone that was never installed; `make help` lists them.
# VENV and PYTHON may be set: make VENV=/tmp/venv PYTHON=python3.12 test

SHELL := /bin/bash -euo pipefail
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)
CONFIG ?= configs/quickstart.toml
BENCHMARKS ?= $(filter-out __init__ verdict,$(basename $(notdir $(wildcard benchmarks/*.py))))

.PHONY: help run install test test-fast crash-points mutations storm lint bench lock docs clean apt
.DELETE_ON_ERROR:

help:
	@echo "make run        train the quick start's model here, from nothing, in minutes (CONFIG=...)"
	@echo "make install    create $(VENV) with everything that development needs"
	@echo "make test       all tests        make test-fast  those that take seconds"
	@echo "make storm      kill every role at random for ten minutes (SEED=... DURATION=seconds)"
	@echo "make crash-points  end every role after each of its steps, and after every pair of them"
	@echo "make mutations  break the product's rules one by one: the tests must notice"
	@echo "make lint       ruff and mypy    make bench      print each benchmark's figure"
	@echo "make docs       docs/configuration.md    make lock  constraints.txt, from a fresh environment"
	@echo "make clean      remove build/ and $(VENV); runs/ stays"

run: $(VENV)/.run
	$(BIN)/echo-queue run $(CONFIG)

install: $(VENV)/.dev

test: $(VENV)/.dev apt
	$(BIN)/python -m pytest

test-fast: $(VENV)/.dev apt
	$(BIN)/python -m pytest -m "not slow"

storm: $(VENV)/.dev apt
	$(BIN)/python -m tests.faults.storm $(if $(SEED),--seed $(SEED)) --duration $(or $(DURATION),600)

crash-points: $(VENV)/.dev apt
	CRASH_PAIRS=all $(BIN)/python -m pytest -s tests/faults/test_crash_points.py

mutations: $(VENV)/.dev apt
	$(BIN)/python -m tests.faults.mutate

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.dev apt
	@for benchmark in $(BENCHMARKS); do echo "── $$benchmark"; $(BIN)/python -m benchmarks.$$benchmark; done

docs: $(VENV)/.dev
	$(BIN)/echo-queue config reference > docs/configuration.md

lock:
	rm -rf build/lock
	$(MAKE) VENV=build/lock CONSTRAIN= build/lock/.dev
	build/lock/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > build/constraints.txt
	mv build/constraints.txt constraints.txt

clean:
	rm -rf build $(VENV)

# Programs that the tests run against and pip cannot bring.
apt:
	@command -v redis-server redis-cli > /dev/null || { \
	  sudo=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
	  echo "installing redis-server (the tests' oldest supported server) with apt"; \
	  { $$sudo apt-get -qq update && $$sudo apt-get -qq install -y redis-server; } > /dev/null || { \
	    echo "The tests need redis-server and redis-cli 7.0 or newer on the path: install them, then try again." >&2; \
	    exit 1; }; }

# torch goes first and alone: with it in place nothing that follows looks for another build of it.
CONSTRAIN ?= --constraint constraints.txt

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { \
	  echo "Python 3.11 or newer is needed: install it, or name it with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2> /dev/null || { \
	  sudo=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
	  { $$sudo apt-get -qq update && $$sudo apt-get -qq install -y python3-venv; } > /dev/null || { \
	    echo "Python's venv module is missing: apt install python3-venv, then try again." >&2; exit 1; }; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(BIN)/python
	@echo "installing $(TORCH)"
	@$(PIP) install $(CONSTRAIN) $(TORCH)
	@touch $@

$(VENV)/.run: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "installing what a run needs"
	@$(PIP) install $(CONSTRAIN) --editable '.[embedded,worker,learner]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "installing what development needs"
	@$(PIP) install $(CONSTRAIN) --editable '.[dev]'
	@touch $@ $(VENV)/.run
