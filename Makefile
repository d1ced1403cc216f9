# Everything that a fresh machine needs: Python 3.11 or newer, make and git. Go, the servers of the
# control plane and the Python packages are found or built, and cached outside the checkout.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROGRAMS := etcd etcdctl kube-apiserver kubectl helm
TEST_PROGRAMS := --all
MINUTES ?= 5
WORKERS ?= 2

.PHONY: help install doctor programs test unit check format demo bench fuzz docs clean

help: ## Show what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

doctor: ## Say what is missing on this machine, and how to get it
	@if [ -z "$(PYTHON)" ]; then echo "etcdmaint needs Python 3.11 or newer: install python3.11 (Debian 12: apt-get install python3 python3-venv) or name it with PYTHON=…"; exit 1; fi
	@$(PYTHON) scripts/doctor.py

install: doctor $(STAMP) ## Make .venv with etcdmaint and what its tests need

$(STAMP): requirements/dev.txt pyproject.toml
	@echo "installing the pinned Python packages into $(VENV) (about a minute the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

programs: install ## Find or build etcd, kube-apiserver and the other servers
	@$(BIN)/python -m tests.controlplane.build $(TEST_PROGRAMS)

test: programs ## Install and run every test
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests

# What pytest makes of the assertions is kept: making it anew takes an eighth of a run.
unit: install ## Run only the tests that need no server
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(WORKERS) tests/unit

check: install ## Lint, types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: install ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

demo: install ## Show the whole: a local control plane, the operator, an EtcdDefrag, its outcome
	@$(BIN)/python -m tests.controlplane.build $(PROGRAMS)
	@KEEP=$(KEEP) $(BIN)/python scripts/demo.py

bench: programs ## Run the benchmarks
	@$(BIN)/python -m tests.bench

fuzz: install ## Fuzz everything that decodes what is stored: MINUTES=n
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

docs: install ## Generate the reference pages
	@for script in scripts/generate_*_reference.py; do $(BIN)/python $$script; done
	@$(BIN)/python scripts/generate_requirements_table.py

clean: ## Remove what was made in the checkout
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
