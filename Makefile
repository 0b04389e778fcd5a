# Every task sets up what it needs in .venv first. `make` lists the tasks.

PYTHON ?= python3
PYTEST_ARGS ?= -n 2
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
OLDEST_PYTHON := 3.11

.DEFAULT_GOAL := help
.NOTPARALLEL: # two pips at once would spoil the environment
.DELETE_ON_ERROR:
.PHONY: help demo test lint bench setup clean

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Variables: PYTHON (default python3, $(OLDEST_PYTHON) or newer), PYTEST_ARGS, BENCH_ARGS. For example:"
	@echo "  make test PYTEST_ARGS='tests/conformance'"
	@echo "  make bench BENCH_ARGS='--databases sqlite --jobs 20000'"

demo: $(VENV)/.installed ## see it work, on one SQLite file
	$(BIN)/fencepost demo

test: $(VENV)/.installed-dev ## run the tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev ## check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev ## measure plain SQL and fencepost, side by side
	$(BIN)/python -m bench $(BENCH_ARGS)

setup: $(VENV)/.installed-dev ## only prepare .venv with all that tests, lint and bench need

clean: ## remove .venv and everything else that was made here
	rm -rf $(VENV) build dist .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name .git -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +

# --clear: when the interpreter is missing, whatever else stands there belonged to another one.
$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "There is no '$(PYTHON)' here. Name a Python $(OLDEST_PYTHON) or newer: make PYTHON=python$(OLDEST_PYTHON)" >&2; \
	    exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < tuple(map(int, "$(OLDEST_PYTHON)".split("."))))' || { \
	    echo "fencepost needs Python $(OLDEST_PYTHON) or newer, and '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1)." \
	        "Name another: make PYTHON=python$(OLDEST_PYTHON)" >&2; \
	    exit 1; }
	"$(PYTHON)" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

# Order-only: the interpreter's own date says nothing about what is installed.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	@touch $(VENV)/.installed $@
