# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRAS := vision,instruct,coding,large,ray,lightning,dev
AVALANCHE := .venv-avalanche
DEEPSPEED := .venv-deepspeed

.PHONY: demo test tests test-avalanche test-deepspeed lint style types fuzz soak bench docs report tables pictures browser clean

demo: $(VENV)/.ready  ## One isolated spike, one coherent region: who is replayed?
	$(BIN)/sphere demo --out demo

test: style  ## Everything CI checks; mypy beside the tests, which leave a core idle now and then.
	$(MAKE) --no-print-directory --jobs=2 types tests

tests: $(VENV)/.ready
	# Small tensors: processes help, threads would only wait for each other.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-avalanche:  ## The plugin in real strategies of Avalanche, which has an environment of its own.
	@if $(MAKE) --no-print-directory $(AVALANCHE)/.ready; then \
		OMP_NUM_THREADS=1 $(AVALANCHE)/bin/python -m pytest -rs tests/integrations/test_avalanche.py; \
	else echo "skipped: Avalanche could not be installed, for the reason above"; fi

$(AVALANCHE)/.ready: pyproject.toml constraints.txt
	test -x $(AVALANCHE)/bin/python || $(PYTHON) -m venv $(AVALANCHE)
	$(AVALANCHE)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[vision]' \
		dill gdown gputil hypothesis psutil pytest qpsolvers setuptools tensorboard torchmetrics tqdm wandb
	# Without what they ask for: a torchvision that would bring another torch.
	$(AVALANCHE)/bin/python -m pip install -q --disable-pip-version-check --no-deps avalanche-lib pytorchcv
	touch $@

test-deepspeed:  ## Trainings under ZeRO-1 and 2, on two processes without a GPU; an environment of its own.
	@if $(MAKE) --no-print-directory $(DEEPSPEED)/.ready; then \
		DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 $(DEEPSPEED)/bin/python -m pytest -rs tests/integrations/test_zero.py; \
	else echo "skipped: DeepSpeed could not be installed, for the reason above"; fi

$(DEEPSPEED)/.ready: pyproject.toml constraints.txt
	test -x $(DEEPSPEED)/bin/python || $(PYTHON) -m venv $(DEEPSPEED)
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(DEEPSPEED)/bin/python -m pip install -q --disable-pip-version-check \
		-c constraints.txt -e '.[deepspeed]' pytest
	touch $@

lint: style types

style: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.ready
	$(BIN)/mypy

fuzz: $(VENV)/.ready  ## Random allocations for ten minutes, then a thousand damaged files.
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz allocations --minutes 10
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz files --most 1000 --minutes 60

soak: $(VENV)/.ready  ## Kills at random, a hundred of each kind of run; killed workers; memory.
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.soak

bench: $(VENV)/.ready  ## Ratios against the naive transcription and the bare GEMM; writes docs/performance*.md.
	$(BIN)/python -m benchmarks allocate --markdown docs/performance.md
	$(BIN)/python -m benchmarks large --markdown docs/performance-large.md
	$(BIN)/python -m benchmarks train --markdown docs/performance-train.md
	$(BIN)/python -m benchmarks hosts --markdown docs/performance-hosts.md
	$(BIN)/python -m benchmarks economy --markdown docs/performance-economy.md
	$(BIN)/python -m benchmarks scoring --markdown docs/performance-scoring.md
	$(BIN)/python -m benchmarks augmentation --markdown docs/performance-augmentation.md
	$(BIN)/python -m benchmarks instruct --markdown docs/performance-instruct.md
	$(BIN)/python -m benchmarks coding --markdown docs/performance-coding.md
	$(BIN)/python -m benchmarks sandbox --markdown docs/performance-sandbox.md
	$(BIN)/python -m benchmarks hollow --markdown docs/performance-hollow.md

report: $(VENV)/.ready  ## The committed results as one page, report.html.
	$(BIN)/sphere report results --out report.html --title "sphere-replay: results"

tables: $(VENV)/.ready  ## Those of the documents, from committed results.
	$(BIN)/python docs/tables.py

pictures: browser  ## Those of the documents, into docs/images/.
	$(BIN)/python docs/pictures.py

browser: $(VENV)/.ready  ## Chromium and Playwright, for the tests of the report; needs apt-get.
	which chromium || apt-get install -y chromium || sudo apt-get install -y chromium
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[browser]'

docs: $(VENV)/.docs  ## The documentation site, into site/.
	$(BIN)/mkdocs build --strict

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) $(AVALANCHE) $(DEEPSPEED) site demo build dist .mypy_cache .ruff_cache .pytest_cache
