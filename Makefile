# The two commands a new machine needs are `make demo` and `make test`; each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

# torch comes first and by itself: a range would take a CUDA build of several GB where an index prefers one.
TORCH ?= torch==2.13.0

.PHONY: demo test test-all check lint types bench docs engine clean

demo: $(STAMP)
	$(BIN)/trnprof demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not slow"

test-all: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS)

# The bundled engine and the oracle of its tests; without it those tests are skipped and say so.
engine: $(VENV)/.engine

check: lint types test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy sees the package as a user has it: an installed copy, since the top-level folders are mapped into trnprof.*
types: $(STAMP)
	rm -rf build/typecheck
	$(BIN)/python -m pip install --quiet --no-deps --target build/typecheck .
	cd build/typecheck && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p trnprof

bench: $(STAMP)
	$(BIN)/python -m tests.bench

docs: $(STAMP)
	$(BIN)/python -m trnprof.render.codes > docs/codes.md

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/.engine: $(STAMP)
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[dev,engine-test]'
	touch $@

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("trnprof needs Python 3.11 or newer; run: make PYTHON=python3.11 $(MAKECMDGOALS)" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(STAMP)
