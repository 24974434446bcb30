# make demo       inspect and run a real model, from a fresh clone and a bare Python 3.11 or newer
# make test       style, types and the quick tests
# make test-all   the same with the slow tests
# make bench      every benchmark
# make clean      remove what these made
#
# A machine without a GPU saves gigabytes by letting pip find a CPU build of torch: set PIP_FIND_LINKS or
# PIP_EXTRA_INDEX_URL before the first run.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST_ARGS ?= -n 2
BENCHMARKS := $(filter-out benchmarks/_%, $(wildcard benchmarks/*.py))

# Bytecode is kept whatever the shell says: workers, and the processes that tests start, all import the same files.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-all check bench clean

demo: $(VENV)/.demo
	$(BIN)/python -m partitioner inspect examples/two_towers.py
	$(BIN)/python examples/two_towers.py

# pytest comes last, so that its summary is the last line.
test: check
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: check
	HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest $(PYTEST_ARGS) --slow

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps' times say when the environment was last brought up to date.
$(VENV)/.demo: requirements/demo.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "partitioner needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements/demo.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.demo requirements/dev.txt requirements/torchvision.txt
	$(PIP) install -r requirements/dev.txt
	$(PIP) install --no-deps -r requirements/torchvision.txt
	touch $@
