# make            what there is
# make demo       from a fresh clone to a private model and its privacy statement
# make test       every test

PYTHON ?= python3
WORKERS ?= 2
TORCH := torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.tacita-setup
ONE_THREAD := OMP_NUM_THREADS=1
# Where the environment forbids bytecode, pytest would rewrite all test files in every run: 10 s of CPU time a worker. It
# stands beside its source, where that of the packages is since they were installed.
KEEP_BYTECODE := PYTHONDONTWRITEBYTECODE=
# Two workers with a thread each use two cores better than one worker with two threads. Each takes a file at a time, the
# longest first (conftest.py): what a file makes once is made once. A worker whose test waits for ever is replaced twice.
PYTEST := $(ONE_THREAD) $(KEEP_BYTECODE) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 2

# Other processors, as torch and oneDNN can be told to be, and where the numbers of their arithmetic matter.
PROCESSORS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 \
	ONEDNN_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX512_CORE
ARITHMETIC := tests/gradients tests/oracles tests/clipping tests/estimators

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick lint format audit cpus bench bench-gpu sweep pages docs site package clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 16

setup: $(STAMP)  ## Create .venv and install tacita, the papers' experiments and what development needs (once)

# The stamp is written last, so a setup that was interrupted is taken up again; a venv without a working pip is
# started afresh. torch comes first and alone: left to the resolver it may bring gigabytes that no one needs here.
$(STAMP): pyproject.toml reproductions/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
		|| { echo "tacita needs Python 3.11, 3.12 or 3.13: make setup PYTHON=python3.12"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' -e reproductions
	@touch $@

demo: $(STAMP)  ## Train a private model on handwritten digits and print its privacy statement
	@$(BIN)/python examples/demo.py

test: $(STAMP)  ## Every test (WORKERS=2 processes); of one whose cases take more than 0.7 s together, some of them
	$(PYTEST) --share 0.7

quick: $(STAMP)  ## The tests that a change needs every time: all but those that take long (tests/slow.txt)
	$(PYTEST) --quick

lint: $(STAMP)  ## Format, style, types and generated pages, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m docs.make_reference --check || { echo "pages are out of date: make pages"; exit 1; }
	$(BIN)/python -m tests.planted.table --check || { echo "docs/pitfalls.md is out of date: make pages"; exit 1; }

format: $(STAMP)  ## Put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

audit: $(STAMP) cpus  ## The tests again with TACITA_AUDIT=1: the experiments', more kill points, runs, examples, Opacus' grids; writes docs/audit.md
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	TACITA_AUDIT=1 $(PYTEST) -o faulthandler_timeout=0 src tests reproductions
	$(BIN)/python docs/make_audit.py

cpus: $(STAMP)  ## The tests of arithmetic as other processors do it: other kernels, and a simulated one
	for processor in $(PROCESSORS); do echo $$processor; env $$processor $(PYTEST) $(ARITHMETIC) || exit 1; done
	$(PYTEST) -p tests.other_cpu $(ARITHMETIC)

bench: $(STAMP)  ## Step time and memory beside plain PyTorch and Opacus; writes docs/benchmarks.md
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/step_time.py

bench-gpu: $(STAMP)  ## The same on a CUDA device; writes docs/benchmarks-gpu.md
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/step_time.py --device cuda
	$(BIN)/python benchmarks/noise.py --device cuda
	$(BIN)/python benchmarks/shards.py --device cuda

sweep: $(STAMP)  ## Step time against batch, width, length and depth; writes docs/sweep.md, .json and .svg
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/sweep.py --json docs/sweep.json --plot docs/sweep.svg --page docs/sweep.md

pages: $(STAMP)  ## Write the generated pages
	$(BIN)/python -m docs.make_reference
	$(BIN)/python -m tests.planted.table
	$(BIN)/python -m docs.make_figures

docs: pages  ## Write the generated pages, then run every snippet
	$(PYTEST) tests/test_docs.py tests/test_public_api.py

site: pages  ## Build the documentation as a site that needs no network: build/site/index.html
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

package: $(STAMP)  ## Build wheel and sdist, install both by name with each Python that is here, run the demo
	.ci/package

clean:  ## Remove what was built, .venv included
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
