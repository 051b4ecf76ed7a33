# Each target installs what it needs: a machine with Python 3.11+ and make is enough.
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
OWN_UV := $(filter .tools/bin/uv,$(UV))
BIN := .venv/bin
INSTALL := $(UV) pip install --quiet --python $(BIN)/python --constraints constraints.txt
# Versions for every platform and Python from 3.11 on, of our dependencies and of the tools that install them, with
# the hashes of their files: uv refuses a file with another hash. Files from elsewhere (such as another build of
# PyTorch) need UV_NO_VERIFY_HASHES=1.
PIN := printf 'uv\nhatchling\neditables\n' | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--group dev --group audit --group bench --extra export --extra explore --extra hf --extra remote --extra tensorboard --extra wandb --no-header --no-annotate --no-emit-index-url --output-file constraints.txt

.PHONY: help demo test check bench fuzz audit install pins update format lint types imports docs tables soak clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

demo: install ## train on the bundled photographs: minutes on any machine
	$(BIN)/aag train --data sample --recipe demo

test: install ## run the tests that need no GPU and no download
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

check: lint types imports docs test ## everything CI runs

bench: install ## measure speed and memory of every stage
	$(INSTALL) --group bench
	$(BIN)/aag bench

fuzz: install ## give 100,000 damaged files to the readers: about an hour (INPUTS=1000 for fewer)
	PYTHONPATH=tools $(BIN)/python -m fuzz --inputs $(or $(INPUTS),100000)

audit: install ## list all packages in bom.json and look up known vulnerabilities
	$(INSTALL) --group audit
	$(BIN)/python tools/audit.py

format: install ## format the code and apply the linter's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: install ## check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install ## check types
	$(BIN)/mypy

imports: install ## check that imports point downwards only
	$(BIN)/lint-imports --no-logo

docs: install ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

tables: install ## write the tables of README.md and docs/ from results/
	$(BIN)/python tools/make_tables.py

soak: install ## kill, damage and starve small runs, and compare them with undisturbed ones: about half an hour
	PYTHONPATH=tools $(BIN)/python -m soak --json soak.json

install: .venv/installed ## install the package and its tools, at the versions in constraints.txt

.venv/installed: pyproject.toml constraints.txt | $(OWN_UV)
	test -x $(BIN)/python || $(UV) venv --quiet .venv
	$(INSTALL) --build-constraints constraints.txt --editable '.[export,explore,hf,remote,tensorboard,wandb]' --group dev
	@touch $@

pins: | $(OWN_UV) ## add new dependencies to constraints.txt; keep all other versions
	$(PIN) pyproject.toml -

update: | $(OWN_UV) ## move constraints.txt to the newest versions
	$(PIN) --upgrade pyproject.toml -

.tools/bin/uv:
	python3 -m venv .tools
	sed -n '/^uv==/,/[^\\]$$/p' constraints.txt > .tools/uv.txt
	.tools/bin/python -m pip install --quiet --require-hashes --requirement .tools/uv.txt

clean: ## remove what make made
	rm -rf .venv .tools .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis site
