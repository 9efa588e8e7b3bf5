# `make demo` and `make test` need only Python (3.11 or newer) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-xla soak explore fuzz docs durations lint format setup peers bench clean

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

setup: $(READY)

demo: $(READY)  ## fit the robot arm, print a table, write pictures to demo/
	$(BIN)/python examples/demo.py --output demo

# one worker per core; a file stays with one worker, and tests/conftest.py puts the longest files first
# bytecode is kept, whatever the user's setting: tests start many processes that import the same modules
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test: $(READY)  ## the whole test suite
	$(PYTEST)

THEOREMS := bounds chain cg nystrom operator inducing posterior backends

test-xla: $(READY)  ## tests of theorems on four virtual devices, by XLA alone: no BLAS, no threads
	CGLB_TEST_DEVICES=4 $(PYTEST) -m 'not one_cpu' $(THEOREMS:%=tests/test_%.py)

explore: $(READY)  ## the property tests with new random seeds and 300 examples each; takes hours
	HYPOTHESIS_PROFILE=explore $(PYTEST) -m hypothesis

SOAK_SECONDS ?= 3600

soak: $(READY)  ## kills, broken files, and random problems against 113 bits until SOAK_SECONDS are over
	$(BIN)/python benchmarks/soak --problems 1000000 --seconds $(SOAK_SECONDS) --json soak.json

fuzz: $(READY)  ## 5,000 broken and odd tables through the command line; prints the counts
	$(BIN)/python tests/fuzz_tables.py --tables 5000

docs: $(READY)  ## the site, in docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs docs/_build/html

durations: $(READY)  ## the test suite, with the time of each file, longest first
	CGLB_TEST_DURATIONS=1 $(PYTEST) --durations 10

lint: $(READY)  ## what CI checks in addition to the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

peers:  ## virtual environments of the libraries that benchmarks compare with
	test -x benchmarks/.venvs/gpflow/bin/python || $(PYTHON) -m venv benchmarks/.venvs/gpflow
	benchmarks/.venvs/gpflow/bin/python -m pip install --quiet -r benchmarks/peers/requirements-gpflow.txt
	test -x benchmarks/.venvs/torch/bin/python || $(PYTHON) -m venv benchmarks/.venvs/torch
	benchmarks/.venvs/torch/bin/python -m pip install --quiet torch==2.13.0
	benchmarks/.venvs/torch/bin/python -m pip install --quiet -r benchmarks/peers/requirements-torch.txt

bench: $(READY) peers  ## the short set of benchmarks, about 20 minutes; needs the data sets for objective.py
	$(BIN)/python benchmarks/product.py
	$(BIN)/python benchmarks/objective.py
	$(BIN)/python benchmarks/objective.py --inducing 1024 --sides 'cglb sgpr,GPflow SGPR'
	$(BIN)/python benchmarks/scale.py

clean:
	rm -rf $(VENV) build dist docs/_build
