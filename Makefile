# The two commands of the README: `make demo` and `make test`.
# Both need only Python >= 3.11 with pip and venv, and make; they create .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes, which would each compile all modules anew.
test test-full: export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test test-full lint types imports bench paper fuzz clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "capedjica needs Python >= 3.11; $(PYTHON) is $$($(PYTHON) --version 2>&1). Use: make PYTHON=python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/installed: $(VENV)/created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[federated,web,test]'
	@touch $@

demo: $(VENV)/installed  ## four hospitals find brain networks together; figures in capedjica-demo/
	$(BIN)/capedjica demo

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	+$(MAKE) --no-print-directory --jobs 2 --output-sync types imports

types: $(VENV)/installed-test
	$(BIN)/mypy

imports: $(VENV)/installed-test
	$(BIN)/lint-imports

test: lint  ## style, types, import contracts and the tests (10 to 13 minutes on 2 cores)
	# Three on two cores: tests of FLARE mostly wait.
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

test-full: lint  ## the same with the long cases; writes docs/evidence/test-full.txt
	$(BIN)/python -m tests.evidence

bench: $(VENV)/installed-test  ## speed against peers, measured in one run
	$(BIN)/python -m benchmarks

paper: $(VENV)/installed-test  ## every figure and table of the paper (real data too: ABIDE=FOLDER)
	$(BIN)/python -m paper $(if $(ABIDE),--abide '$(ABIDE)')

$(VENV)-fuzz/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-fuzz
	$(VENV)-fuzz/bin/python -m pip install --quiet --editable . 'atheris>=3,<4'
	@touch $@

fuzz: $(VENV)-fuzz/installed  ## coverage-guided fuzzing of the secure sum (FUZZ_SECONDS=60)
	$(VENV)-fuzz/bin/python -m fuzz.fuzz_securesum --seconds $(or $(FUZZ_SECONDS),60)

clean:  ## remove the environment and caches
	rm -rf $(VENV) $(VENV)-fuzz $(VENV)-flower .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
