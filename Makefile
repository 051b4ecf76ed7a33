# Each target installs what it needs: a machine with Python 3.11+ and make is enough.
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
PYTHON := .venv/bin/python

.PHONY: demo test check bench install lint types tables clean

demo: install ## train on the bundled photographs, on any machine, in minutes
	.venv/bin/aag train --data sample --recipe demo

test: install ## all tests that need neither a GPU nor minutes
	$(PYTHON) -m pytest -n 2 -q

check: lint types test ## what CI runs

bench: install ## speed and memory of every stage, beside the usual way
	$(UV) sync --group bench
	.venv/bin/aag bench

lint: install
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .

types: install
	.venv/bin/mypy

tables: install ## the pages' tables, from results/
	$(PYTHON) tools/make_tables.py

install: $(if $(findstring .tools,$(UV)),.tools/bin/uv)
	$(UV) sync

.tools/bin/uv:
	python3 -m venv .tools
	.tools/bin/python -m pip install --quiet uv

clean:
	rm -rf .venv .tools .pytest_cache .mypy_cache .ruff_cache .hypothesis
