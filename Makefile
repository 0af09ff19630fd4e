# `make` lists the targets. Everything happens inside this checkout; see scripts/setup.py for the one exception.

SHELL := /bin/bash
# A test run starts some hundred processes; without bytecode files each compiles the project again.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help setup demo test pytest e2e check docs up bench fuzz soak roundtrip s3a jars jars-s3a constraints sbom clean distclean

# The first supported Python that can make a .venv, else the first supported one; PYTHON=... chooses another. The distribution's
# comes first: it is built with the compiler's profile (PGO), which one that was built by hand or by pyenv often is not, and
# that is a quarter of the time of Python code. It is looked for only when set-up has to run.
find_python = $(or $(PYTHON),$(shell for needed in ensurepip sys; do \
	for p in /usr/bin/python3 python3 python3.11 python3.12 python3.13; do \
	$$p -c "import sys, $$needed; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))" 2>/dev/null && echo $$p && break 2; \
	done; done))
READY := .venv/.ready

# Three test processes, as one often waits for a server; each with whole test files (or folders) in the order of
# tests/conftest.py. `make test PYTEST_ARGS=` runs one.
PYTEST_ARGS ?= -n 3 --dist loadfile --no-loadscope-reorder

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Java, .venv and jars; the other targets run it when needed

$(READY): requirements-dev.txt pyproject.toml spark_jobs/jars.lock scripts/setup.py
	@python=$(find_python); if [ -z "$$python" ]; then \
	  echo "error: no Python 3.11, 3.12 or 3.13 found. Install one, or name it: make setup PYTHON=..." >&2; exit 1; fi; \
	$$python scripts/setup.py

demo: setup ## the main job on a small broker store: import, windows, retries, dead letter, replay, SQL
	@.venv/bin/python -m demo

test: setup ## every check, and the tests but those of make e2e: a quarter of the cases and slow tests, or CASES=all
	@$(MAKE) --no-print-directory -j 2 check pytest  # mypy alone would leave a core idle

# With it a JVM of the tests starts with two thirds of the processor time. A Java that makes none runs the tests too.
CLASSES := .cache/spark-classes.jsa

$(CLASSES): $(READY)
	@.venv/bin/python -m tests.spark.class_archive $@ || echo "no archive of Spark's classes: the tests take longer"

# A quarter of the cases and of the slow tests runs, another one for each commit: tests/sample.py. CASES=all runs each, which takes
# much longer.
SAMPLE ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo 1)

pytest: setup $(CLASSES)
	.venv/bin/python -m pytest -m "not platform and not s3a" $(if $(filter all,$(CASES)),,--sample $(SAMPLE)) $(PYTEST_ARGS)

e2e: setup ## the services of docker-compose.yaml on loopback, and what a user does with them, in REST and a browser
	@.venv/bin/python scripts/e2e_programs.py
	.venv/bin/python -m pytest -m platform -x -s --log-level=WARNING tests/e2e/test_platform.py $(E2E_ARGS)

check: setup docs ## ruff check and format, mypy --strict, import-linter, make docs
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

docs: setup ## the documents as a site in build/site, each link checked, with the pictures of the last make e2e
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet

up: setup ## Airflow with its UI on loopback and a warm Spark server (SPARK=0: without it); Ctrl-C stops it
	@.venv/bin/python scripts/up.py $(if $(SPARK),$(if $(filter-out 0,$(SPARK)),--spark,--no-spark))

bench: setup ## the speed table, with other ways to do the same work in the same run
	@.venv/bin/python -m benchmarks

soak: setup ## processes that are killed and frozen over one store, and a check: SECONDS, SEED, PROCESSES, STORE, ENGINE
	@.venv/bin/python -m tests.faults.soak --seconds $(or $(SECONDS),60) --seed "$(SEED)" \
	  --processes $(or $(PROCESSES),3) --store $(or $(STORE),local) --engine $(or $(ENGINE),local) $(SOAK_ARGS)

fuzz: setup ## random stores, files, listeners, SQL and options: each is answered or refused; SECONDS, SEED, PROCESSES
	@.venv/bin/python -m tests.faults.fuzz --seconds $(or $(SECONDS),60) --seed "$(SEED)" \
	  --processes $(or $(PROCESSES),2) $(FUZZ_ARGS)

roundtrip: setup ## a real RocketMQ broker and the lake take turns; each message must be finished once (minutes)
	@.venv/bin/python -m tests.roundtrip

s3a: jars jars-s3a ## Spark SQL over a real S3 server: fetches 690 MB of jars
	.venv/bin/python -m pytest -m s3a -n 0 tests/spark/test_s3a.py

jars: setup ## fetch the pinned jars that are missing, and check their sums
	@.venv/bin/python -m spark_jobs.jars

jars-s3a: setup ## also fetch the 690 MB of jars for Spark SQL over s3:// roots
	@.venv/bin/python -m spark_jobs.jars --group s3a

RUNTIME := $(foreach extra,airflow build postgres rocksdb spark,--extra $(extra))
COMPILE := .venv/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-header --quiet

constraints: setup ## choose the versions in constraints.txt again, within the ranges of pyproject.toml; then make sbom
	@mkdir -p .cache && cp requirements-dev.txt .cache/all.txt && cp requirements.txt .cache/runtime.txt
	$(COMPILE) --all-extras --output-file .cache/all.txt $(UV_ARGS)
	$(COMPILE) $(RUNTIME) --constraints .cache/all.txt --no-annotate --output-file .cache/runtime.txt $(UV_ARGS)
	@for name in requirements-dev:all requirements:runtime; do \
	  { sed '/^#/!Q' $${name%:*}.txt; cat .cache/$${name#*:}.txt; } > .cache/new.txt && mv .cache/new.txt $${name%:*}.txt; done
	@{ sed '/^#/!Q' constraints.txt; sed -E '/^ +--hash/d; s/ *\\$$//' .cache/all.txt; } > .cache/new.txt
	@mv .cache/new.txt constraints.txt && rm .cache/all.txt .cache/runtime.txt

sbom: setup ## write sbom.cdx.json and NOTICE again, from requirements.txt and spark_jobs/jars.lock
	@.venv/bin/python scripts/sbom.py

clean: ## remove var/ and the tools' caches
	rm -rf var build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## also remove .venv and the fetched jars
	rm -rf .venv .cache
