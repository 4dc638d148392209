# `make demo` and `make test` do all their own set-up; they need Python 3.11+ and make.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python .ci/install
# Where `advisor demo` writes its report.
OUT ?= demo-out

# Two test processes run at once; with more threads each, they slow each other down several times.
test test-slow: export OMP_NUM_THREADS := 1

.PHONY: help demo test test-slow fuzz lint types contracts audit docs docs-site examples compat wheel release-check check clean browser postgres mariadb

help:
	@echo "make demo       tune a small network in two rounds and write a report (about two minutes)"
	@echo "make test       run the tests (about a quarter of an hour on two cores)"
	@echo "make test-slow  the same with slow tests, and every promise tested on all simulated studies"
	@echo "make fuzz       hostile and broken data: 100,000 cases, new ones each time"
	@echo "make check      lint, types, import contracts, freshness of generated pages"
	@echo "make audit      known vulnerabilities of installed packages, if osv.dev is reachable"
	@echo "make wheel      build the wheel and try it in an empty environment"
	@echo "make release-check  build everything twice and check whether it can be published"
	@echo "make compat     try other versions of Python, MLflow, PyTorch and the frameworks (hours, and tens of gigabytes)"
	@echo "make docs       regenerate rules/README.md"
	@echo "make examples   regenerate the golden examples of the rules"
	@echo "make docs-site  build the documentation in build/site"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11 or newer; install it or pass PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -c constraints.txt -e '.[docs]'
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/advisor demo --out $(OUT)

# Browser tests use the system's Chromium. On Debian, root installs it if it is missing; otherwise these tests are skipped.
browser:
	@command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 \
	|| { command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && { apt-get -qq update && apt-get -qq -y install chromium >/dev/null; }; } \
	|| echo "make: no Chromium, so the browser tests will be skipped"

# Some tests use their own PostgreSQL or MariaDB server, which is installed in the same way.
postgres:
	@command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
	|| { command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && { apt-get -qq update && apt-get -qq -y install postgresql >/dev/null; }; } \
	|| echo "make: no PostgreSQL, so the tests that need it will be skipped"

mariadb:
	@command -v mariadbd >/dev/null 2>&1 || ls /usr/sbin/mariadbd >/dev/null 2>&1 \
	|| { command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && { apt-get -qq update && apt-get -qq -y install mariadb-server >/dev/null; }; } \
	|| echo "make: no MariaDB, so the tests that need it will be skipped"

test: $(VENV)/.dev browser postgres
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "not slow"

test-slow: $(VENV)/.dev browser postgres mariadb
	ADVISOR_TESTS=all $(BIN)/python -m pytest -n 2 --dist loadgroup

fuzz: export OMP_NUM_THREADS := 1
fuzz: $(VENV)/.dev
	ADVISOR_FUZZ=15 $(BIN)/python -m pytest -n 2 tests/fuzz

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache

audit: $(VENV)/.dev
	@$(BIN)/python .ci/audit

docs: $(VENV)/.dev
	$(BIN)/python -c "from advisor.engine.pages import rules_readme_text; from advisor.engine.registry import load_rules; open('rules/README.md', 'w', encoding='utf-8').write(rules_readme_text(load_rules()))"
	$(BIN)/python docs/generator/rooms.py

examples: $(VENV)/.dev
	ADVISOR_TESTS=write $(BIN)/python -m pytest -q tests/test_every_rule.py -k golden

# Most pages are generated from the code during the build; a broken link fails it.
docs-site: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict
	@echo "The documentation is in build/site/index.html; with its search: python3 -m http.server -d build/site"

# Each version gets its own environment. Results are kept in build/compatibility and not computed again.
compat: $(BIN)/python
	$(BIN)/python benchmarks/reliability/compatibility.py

check: lint types contracts

# Builds twice, compares both builds, and checks metadata and links. ARGS=--draft: the project's addresses may be missing.
release-check: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet twine
	$(BIN)/python .ci/release-check $(ARGS)

wheel: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	.ci/try-wheel "$(PYTHON)" dist/*.whl

clean:
	rm -rf $(VENV) dist build demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis
