# make demo: set-up and the main job.   make test: set-up and the tests.   Both work from a fresh clone, offline after set-up.
PYTHON ?= python3
BIN = .venv/bin
READY = .venv/.ready

.PHONY: setup demo test test-all test-gpu check format wheel-test

setup: $(READY)

# The stamp is written last: an interrupted install is started again. When torch is not there yet the constraint picks
# the build; constraints.txt pins every package.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "BERTVision needs Python 3.11 to 3.13, this is " + sys.version.split()[0] + "; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/bertvision demo

test: $(READY)
	$(BIN)/python -m pytest -q

test-all: $(READY)
	$(BIN)/python -m pytest -q -m 'not gpu'

test-gpu:
	python3 -m pytest -q -m gpu tests/gpu

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The installed package, away from the sources: what a user of the wheel gets.
wheel-test: $(READY)
	rm -rf dist && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(PYTHON) -m venv --system-site-packages dist/venv
	dist/venv/bin/python -m pip install --quiet --no-deps dist/*.whl
	cd dist && PYTHONPATH=$(CURDIR)/$$(echo ../.venv/lib/python*/site-packages | sed 's,^../,,') venv/bin/python -m bertvision tasks
