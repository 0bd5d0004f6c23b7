# The two commands of the README: `make demo` and `make test`.
# Both need only Python >= 3.11 with pip and venv, and make; they create .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes, which would each compile all modules anew.
test test-full: export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test test-full lint types imports bench evidence docs paper fuzz package lock sbom clean
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
	$(BIN)/python -m pip install --quiet --editable '.[federated,web,test,docs]'
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

test-full: lint  ## the same with the long cases; writes docs/evidence/test-full.txt (a part: PART=flare, attacks or rest)
	$(BIN)/python -m tests.evidence $(PART)

bench: $(VENV)/installed-test  ## speed against peers, measured in one run
	$(BIN)/python -m benchmarks

evidence: $(VENV)/installed-test  ## every figure whose code has changed since it was made (real data too: ABIDE=FOLDER)
	$(BIN)/python -m benchmarks.evidence make $(if $(ABIDE),--folder '$(ABIDE)')
	$(BIN)/python -m benchmarks.evidence quote

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

docs: $(VENV)/installed-docs  ## the documentation site, in docs/_build/html
	rm -rf docs/reference/api  # pages of names that are gone
	# Examples run in the build, one thread each. Warnings are errors, links inside the site included.
	$(BIN)/python -m sphinx --conf-dir docs --jobs 2 --doctree-dir docs/_build/doctrees --quiet \
	  --fail-on-warning --nitpicky . docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	@echo "docs/_build/html/index.html"

paper: $(VENV)/installed-test  ## every figure and table of the paper (real data too: ABIDE=FOLDER)
	$(BIN)/python -m paper $(if $(ABIDE),--abide '$(ABIDE)')

$(VENV)-fuzz/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-fuzz
	$(VENV)-fuzz/bin/python -m pip install --quiet --editable . 'atheris>=3,<4'
	@touch $@

fuzz: $(VENV)-fuzz/installed  ## coverage-guided fuzzing of the secure sum (FUZZ_SECONDS=60)
	$(VENV)-fuzz/bin/python -m fuzz.fuzz_securesum --seconds $(or $(FUZZ_SECONDS),60)

package: $(VENV)/installed-test  ## wheel and sdist in dist/, checked
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*

lock: $(VENV)/installed-test  ## deploy/requirements.lock: the packages of a deployment with their hashes
	$(BIN)/uv pip compile pyproject.toml deploy/build.in --extra federated --extra web --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet --output-file deploy/requirements.lock

sbom: $(VENV)/installed-test  ## dist/capedjica-sbom.json: the packages of the lock file as CycloneDX
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements deploy/requirements.lock --pyproject pyproject.toml --output-reproducible \
	  --validate --output-file dist/capedjica-sbom.json

clean:  ## remove the environment and caches
	rm -rf $(VENV) $(VENV)-fuzz $(VENV)-flower .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist \
	  docs/_build docs/gallery docs/reference/api
