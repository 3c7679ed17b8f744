# Everything a newcomer needs is behind one of these; `make` alone lists them.
#
# The environment lives in .venv. Each set of dependencies has a stamp of its own, so that
# `make demo` installs no test tools and no linters; a changed pyproject.toml reinstalls.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# pip need not look for a newer pip, nor ask anybody anything.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Tests start hundreds of processes, each of which would compile the package anew without its cache.
export PYTHONDONTWRITEBYTECODE :=
# The pyright wheel brings pyright and (with its nodejs extra) node: nothing is downloaded on a run.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

CORES = $(shell getconf _NPROCESSORS_ONLN)
# Tests at a time: three a core, as many of them wait for something; at most six. `tests/pipeline/jvms.py` says how many
# of them may have a JVM.
WORKERS = $(shell echo $$(($(CORES) < 2 ? 3 : 6)))
# Minutes are what they may take.
HANGING = -o faulthandler_timeout=1200

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-long lint bench soak dashboards docs release clean

help: ## list the targets
	@echo "make TARGET [PYTHON=python3.12] [ARGS=...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.relay ## publish a month of flights through a relay and watch who owes, holds and waits
	$(BIN)/clearfunds demo $(ARGS)

test: $(VENV)/.test ## run the tests (ARGS="-k ledger" chooses some)
	@# On a fresh clone one process compiles the tests, not each of six at the same time.
	@[ -d tests/__pycache__ ] || $(BIN)/python -m pytest -qq --collect-only >/dev/null 2>&1 || true
	@# A choice (ARGS) that leaves no test, status 5, is no failure.
	$(BIN)/python -m pytest -rs -n $(WORKERS) --dist worksteal $(ARGS) || [ $$? = 5 ]

test-long: $(VENV)/.test ## run the tests that take minutes
	$(BIN)/python -m pytest -rs -m long $(HANGING) $(ARGS) || [ $$? = 5 ]

lint: $(VENV)/.lint ## ruff, mypy and pyright; whether dashboards/ is what its code makes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m dashboards --check

bench: $(VENV)/.bench ## measure all of docs/evidence.md, in 40 minutes (ARGS="--only fanout")
	$(BIN)/python -m benchmarks.evidence $(ARGS)

soak: $(VENV)/.soak ## an hour of mixed load, with books, memory and descriptors looked at (ARGS="--minutes 10")
	$(BIN)/python benchmarks/soak.py $(ARGS)

dashboards: $(VENV)/.dashboards ## write the files in dashboards/ anew from the code there
	$(BIN)/python -m dashboards

release: $(VENV)/.release ## build, check and tag the version in pyproject.toml; uploads nothing (ARGS="--no-tag")
	$(BIN)/python release.py $(ARGS)

docs: $(VENV)/.docs ## build the documentation as a site, build/docs/index.html
	$(BIN)/python -m docs

clean: ## remove the environment, caches and build products
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian packs ensurepip apart (python3-venv), and a venv made without it is a broken one; so both
# the version and ensurepip are looked at before anything is made.
$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "clearfunds: there is no $(PYTHON) here; install Python 3.11 or newer," \
	       "or name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "clearfunds: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed:" \
	       "name one with make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "clearfunds: $(PYTHON) cannot make a virtual environment;" \
	       "on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.relay: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[relay]'
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[bench,pipeline]'
	@touch $@

$(VENV)/.soak: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[perf,pipeline]'
	@touch $@

$(VENV)/.dashboards: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[dashboards]'
	@touch $@

$(VENV)/.release: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[release]'
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

$(VENV)/.lint: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[lint]'
	@touch $@
