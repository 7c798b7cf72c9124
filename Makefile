# The project's commands. `make demo` and `make test` set everything up by themselves in .venv/.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
.DEFAULT_GOAL := help

help:            ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(READY)  ## .venv/ with the locked dependencies
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("error: Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + "; name one with: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else 0'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing the locked dependencies into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)   ## two real pools, the dispatcher learning on Poisson traffic, a summary and a picture
	@$(BIN)/python -m loadgen demo

test: $(READY)   ## everything CI runs: lint, types, tests
	@$(MAKE) --no-print-directory -j2 lint unit   # side by side: the tests mostly use one core

lint: $(READY)   ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(READY)   ## the tests alone
	$(BIN)/pytest

test-slow: $(READY)  ## the long statistical and endurance tests
	$(BIN)/pytest -m slow

bench: $(READY)  ## the measurements that the README quotes
	$(BIN)/python -m tests.bench

dashboards: $(READY)  ## deploy/grafana/dashboards/*.json again, from the code
	@$(BIN)/python deploy/grafana/dashboards.py

lock:            ## solve the dependencies again (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --all-extras --group dev -q \
	  pyproject.toml -o requirements.lock --custom-compile-command 'make lock'

clean:           ## remove what the commands above made
	rm -rf .venv out .mypy_cache .pytest_cache .ruff_cache .hypothesis

.PHONY: help setup demo test lint unit test-slow bench dashboards lock clean
