# Two commands do everything on a fresh machine: make demo, make test. Each makes .venv, installs what it needs, and says what it does.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test check bench clean

demo: $(VENV)/.core
	@echo "== demo: scores every shipped set of rollouts, tunes a kernel on one, and writes out/demo/report.html"
	@$(BIN)/python -m rollonce.demo --out out/demo

test: $(VENV)/.dev
	@echo "== test: the whole suite but what is marked slow (pytest -m slow runs that by hand)"
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(VENV)/.dev
	@echo "== check: ruff, pyright, import rules"
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright && $(BIN)/lint-imports

bench: $(VENV)/.dev
	@echo "== bench: ratios measured side by side; they take minutes"
	@for f in benchmarks/*.py; do echo "-- $$f"; $(BIN)/python $$f || exit 1; done

$(VENV)/bin/python:
	@echo "== making $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rollonce needs Python 3.11 or newer; pass PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "== installing rollonce and its core dependencies into $(VENV) (a minute or two the first time)"
	@$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "== installing rollonce with its extras and the test tools into $(VENV) (some minutes the first time)"
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,embed,train,inspect]'
	@touch $(VENV)/.core $@

clean:
	rm -rf $(VENV) out
