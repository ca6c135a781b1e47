# `make help` lists what there is. Every target makes .venv by itself and is quick when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install browser demo test test-all test-versions check check-wheel bench bench-gpu zoo soak docs clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

install: $(STAMP) ## make .venv with everything

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt "torch==2.13.0" -e ".[dev,zoo,trainers,docs]"
	@touch $(STAMP)

demo: install ## a small language model whose loss turns NaN: the plain loop beside the guarded one
	$(BIN)/steady demo

browser: install ## a Chromium for the tests of the report, where one can be had
	@tools/get_browser.sh

test: install browser ## the fast suite and the suite that starts processes (minutes)
	$(BIN)/python -m pytest -q -n 2

test-all: install browser ## everything but the GPU tests, with the long fault runs
	$(BIN)/python -m pytest -q -n 2 -m "not gpu and not unmet"

test-versions: ## the suite on the lowest and the newest torch, in environments of their own (gigabytes)
	$(PYTHON) tools/test_versions.py --md build/versions.md

check: install ## lint and strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install ## the paired overhead benchmark on this machine
	$(BIN)/python -m benchmarks.overhead

bench-gpu: install ## every line of the cost table on one GPU, at one commit (about half an hour; resumable)
	$(BIN)/python -m benchmarks.all_lines --md build/bench-gpu.md

zoo: install ## score steadygrad and two other tools on the zoo of failures
	$(BIN)/python -m zoo.score

soak: install ## rough but healthy runs at every entry point: a guard must leave them alone (hours; resumable)
	OMP_NUM_THREADS=1 $(BIN)/python -m soak --sick --seeds 0 --steps 3000 --jobs 2 --resume --results runs/soak.jsonl --md runs/soak.md

docs: install ## the documentation site, in build/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

check-wheel: ## build the wheel and try it in an empty environment
	PYTHON=$(PYTHON) tools/check_wheel.sh
