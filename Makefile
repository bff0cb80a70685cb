# make demo: set-up and the main job.   make test: set-up and the tests.   Both work from a fresh clone, offline after set-up.
PYTHON ?= python3
BIN = .venv/bin
DEMO_READY = .venv/.demo-ready
READY = .venv/.ready

.PHONY: setup demo test test-all test-gpu test-cluster torture check format paper paper-check paper-test kit wheel-test

setup: $(READY)

# The markers are written last, so an interrupted install starts again. The demo needs fewer packages than the tests.
$(DEMO_READY): pyproject.toml constraints.txt setup.sh
	@PYTHON=$(PYTHON) sh setup.sh demo
	@touch $@

$(READY): $(DEMO_READY) runtime/pyproject.toml
	@PYTHON=$(PYTHON) sh setup.sh dev
	@touch $@

demo: $(DEMO_READY)
	$(BIN)/bertvision demo

# A process for each core, at most four: each takes up to 2 GB of memory.
WORKERS = -n logical --maxprocesses 4 --dist worksteal

test: $(READY)
	$(BIN)/python -m pytest -q $(WORKERS)

test-all: $(READY)
	$(BIN)/python -m pytest -q $(WORKERS) -m 'not gpu and not cluster' tests paper/tests

test-gpu: $(READY)
	$(BIN)/python -m pytest -q -m gpu tests/gpu

# Ray clusters of several nodes on this machine: minutes each. `make test` has one of these tests.
test-cluster: $(READY)
	$(BIN)/python -m pytest -q -m cluster tests/cluster

# All attacks on files, processes and input: hours. The first few of each are part of `make test`.
torture: $(READY)
	$(BIN)/python -m tests.reliability.torture

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Write docs/results.md, its appendix pages and pictures from paper/kept; check that they are up to date; test paper/.
paper: $(READY)
	$(BIN)/python -m paper.page

paper-check: $(READY)
	$(BIN)/python -m paper.page --check

paper-test: $(READY)
	$(BIN)/python -m pytest -q $(WORKERS) paper/tests

# The kit that ships, trained again on data/squad and data/glue: minutes on a GPU. Answerability begins with the head for
# spans that was just trained.
KIT_TASKS = squad2 squad2_answerable sst2 mrpc stsb rte cola
SPANS = runs/kit/squad2/snapshots/epoch_0/heads/ladder_128_deep
SENTENCES = $(BIN)/bertvision run configs/kit/sentences.toml
kit: $(READY)
	$(BIN)/bertvision run configs/kit/squad2.toml
	$(SENTENCES) task.name=sst2 task.data=data/glue/SST-2 run=runs/kit/sst2 train.epochs=3
	$(SENTENCES) task.name=mrpc task.data=data/glue/MRPC run=runs/kit/mrpc
	$(SENTENCES) task.name=stsb task.data=data/glue/STS-B run=runs/kit/stsb
	$(SENTENCES) task.name=rte task.data=data/glue/RTE run=runs/kit/rte
	$(SENTENCES) task.name=cola task.data=data/glue/CoLA run=runs/kit/cola
	$(BIN)/bertvision run configs/kit/squad2_answerable.toml 'heads=[{ head = "ladder_128_deep", begin = "$(SPANS)" }]'
	$(BIN)/bertvision kit make $(KIT_TASKS:%=runs/kit/%) --to src/bertvision/kits/shipped/default --about src/bertvision/kits/shipped/about.toml

# The built wheel, installed away from the sources: what a user of the package gets. PYTHONPATH goes before the editable
# install, and the first line makes sure of it.
wheel-test: $(READY)
	rm -rf dist && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python -m pip install --quiet --no-deps --target dist/site dist/*.whl
	cd dist && PYTHONPATH=site ../$(BIN)/python -c 'import bertvision; assert "/dist/site/" in bertvision.__file__'
	cd dist && PYTHONPATH=$(CURDIR)/dist/site ../$(BIN)/python -m pytest -q ../tests/contracts/test_every_head.py ../tests/contracts/test_every_task.py
	cd dist && PYTHONPATH=site ../$(BIN)/python -m bertvision demo --help
	rm -rf dist
