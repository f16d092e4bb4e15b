# Lineage Trails. `make help` lists what there is; `make run` and `make test` need Python 3.11+ and nothing else.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help run test fuzz faults superset lint types bench soak demo lock clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: $(READY) ## start everything on 127.0.0.1:9200 (embedded PostgreSQL, or TRAILS_DATABASE_URL)
	@exec $(BIN)/trails run

test: $(READY) ## all tests, against a PostgreSQL of their own
	$(BIN)/python -m pytest -q

fuzz: $(READY) ## thousands of requests made from the API's own description (CASES=5000)
	TRAILS_TEST_FUZZ=$(or $(CASES),5000) $(BIN)/python -m pytest -q -s tests/acceptance/test_schema_fuzz.py

faults: $(READY) ## crashes, cut connections, full disks, failover: the long form of tests/faults
	TRAILS_TEST_FAULTS=full $(BIN)/python -m pytest -q tests/faults tests/integration/ledger/test_patrol.py \
		tests/acceptance/test_rotation_under_load.py

superset: $(READY) ## a real Apache Superset draws from the views (installs it apart, some minutes)
	TRAILS_TEST_SUPERSET=1 $(BIN)/python -m pytest -q tests/integration/bi/test_superset.py

lint: $(READY) ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## strict type checks
	$(BIN)/mypy

bench: $(READY) ## figures against their floors, in one run (ROW=guard for one)
	$(BIN)/python -m tests.bench $(if $(ROW),--row $(ROW))

soak: $(READY) ## a mixed load for a quarter of an hour, and verdicts (SOAK_MINUTES=15)
	$(BIN)/python -m tests.soak --minutes $(or $(SOAK_MINUTES),15)

demo: $(READY) ## a scripted agent, a tampered copy, and the verifier that finds it
	@$(BIN)/trails demo

lock: $(READY) ## renew requirements.lock from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra server --extra dev --universal --generate-hashes \
		--python-version 3.11 --no-header --no-annotate --quiet -o requirements.lock

clean: ## remove the virtual environment and caches (keeps trails-data)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
