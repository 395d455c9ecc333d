# Every target sets itself up in .venv; nothing but Python, make and a package index is needed.
PYTHON ?= python3
BIN := .venv/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: help setup reproduce test test-fast test-slow test-dispatch coverage lint docs bench clean

# What needs neither training nor a browser, and the rooms whose mathematics everything else rests on.
PURE := tests/geometry tests/attention tests/data tests/test_checks.py tests/test_files.py tests/test_identity.py tests/test_results.py
COVERED := geometry optim attention svm

help:
	@echo "make reproduce   make the figures again, with a report: results/report.html"
	@echo "make test        run the quick test suite"
	@echo "make test-fast   run the pure tests, under a minute on two cores"
	@echo "make test-slow   run the tests that take minutes"
	@echo "make coverage    say how much of $(COVERED) the tests run, with a floor"
	@echo "make test-dispatch   run the numerical tests under other instruction sets"
	@echo "make lint        check format, style, types and layering"
	@echo "make docs        build the documentation: site/index.html"
	@echo "make bench       measure speed, as ratios within one run"
	@echo "make setup       install everything for development into .venv"

setup: .venv/installed-dev .venv/installed-reproduce .venv/installed-bench

reproduce: .venv/installed-reproduce
	$(BIN)/mirrormax reproduce

# What the tests of a file share is made once, as each file goes to one worker.
test: .venv/installed-dev
	$(BIN)/python -m pytest -n auto --dist loadfile

test-fast: .venv/installed-dev
	$(BIN)/python -m pytest -n auto $(PURE)

test-slow: .venv/installed-dev
	$(BIN)/python -m pytest -n auto -m slow --timeout 3600

coverage: .venv/installed-dev
	$(BIN)/python -m pytest -n auto $(COVERED:%=tests/%) $(COVERED:%=--cov=mirrormax.%) --cov-report=term --cov-fail-under=96

test-dispatch: .venv/installed-dev
	$(BIN)/python tests/dispatch.py -n auto

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: .venv/installed-bench
	$(BIN)/mirrormax bench --compare docs/benchmarks.jsonl

clean:
	rm -rf .venv results site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed-%: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) ".[$*]"
	@touch $@
