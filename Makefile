# Two commands do everything on a fresh machine: make demo, make test. Each makes .venv, installs what it needs, and says what it does.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_SET := rg_easy_gemma3_27b_G3
DEMO_SETS := taubench_airline_gpt4o $(DEMO_SET)
# pip warns about every index location that is not there, once for each package: those lines go, errors and the exit code stay.
SHELL := bash
PIP := set -o pipefail; $(BIN)/python -m pip --disable-pip-version-check
QUIETLY := 2>&1 | sed '/^WARNING: Location .* is ignored: it is /d'
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test test-tinker check docs wheel bench clean

demo: $(VENV)/.train
	@mkdir -p out/demo
	@echo "== demo: four steps, under five minutes on two idle cores; the first board stands here within half a minute"
	@echo "== demo 1/4: two shipped sets of real rollouts, a first look (seconds): rollonce score $(DEMO_SETS) --quick"
	@$(BIN)/rollonce score $(DEMO_SETS) --quick --report out/demo/report.html
	@echo "== demo 2/4: tuning a kernel on one of them, judged on tasks it was not tuned on (a minute): rollonce tune $(DEMO_SET) --budget 30s"
	@$(BIN)/rollonce tune $(DEMO_SET) --budget 30s --out out/demo/baseline.json
	@echo "== demo 3/4: training with what was tuned, on the policy that comes along (a minute): rollonce compare specs/demo.toml"
	@cp specs/demo.toml out/demo/  # its arm's baseline.json is looked for beside it
	@$(BIN)/rollonce compare out/demo/demo.toml --out out/demo/compare --report out/demo/compare.html
	@echo "== demo 4/4: auditing what was tuned, as you would before putting it into your trainer (seconds): rollonce check"
	@$(BIN)/rollonce check out/demo/baseline.json
	@echo "== done. The pages: out/demo/report.html, out/demo/compare.html   The tuned baseline: out/demo/baseline.json"
	@echo "   All eight sets: $(BIN)/rollonce score --all-datasets   Five arms, three seeds: $(BIN)/rollonce compare specs/embedded_small.toml"

test: $(VENV)/.dev
	@echo "== test: the whole suite but what is marked slow (pytest -m slow runs that by hand)"
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

test-tinker:
	@echo "== test-tinker: SkyRL's Tinker API server on the loopback, in an environment of its own"
	@PYTHON=$(PYTHON) bash tests/tinker/ci.sh

check: $(VENV)/.dev
	@echo "== check: ruff, pyright, import rules"
	@$(BIN)/ruff check --no-cache . && $(BIN)/ruff format --check . && $(BIN)/pyright && $(BIN)/lint-imports

docs: $(VENV)/.dev
	@echo "== docs: the site, every link and reference of it: out/site/index.html"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(VENV)/bin/python
	@echo "== wheel: built, installed into an empty environment, and tried there in an empty folder"
	@rm -rf .venv-wheel out/wheel && mkdir -p out/wheel/empty
	@$(PIP) wheel --quiet --constraint constraints.txt --no-deps --wheel-dir out/wheel . $(QUIETLY)
	@$(BIN)/python -m venv .venv-wheel
	@set -o pipefail; .venv-wheel/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt out/wheel/*.whl $(QUIETLY)
	@cd out/wheel/empty && ../../../.venv-wheel/bin/rollonce score game24_gpt4_cot --quick --save-best baseline.json --report page.html
	@cd out/wheel/empty && ../../../.venv-wheel/bin/rollonce check baseline.json && ../../../.venv-wheel/bin/rollonce --version

bench: $(VENV)/.dev
	@echo "== bench: ratios measured side by side; they take minutes"
	@for f in benchmarks/*.py; do echo "-- $$f"; $(BIN)/python $$f || exit 1; done

$(VENV)/bin/python:
	@echo "== making $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rollonce needs Python 3.11 or newer; pass PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "== installing rollonce and what training needs (a CPU build of torch, transformers) into $(VENV) (two minutes or so the first time)"
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[train]' $(QUIETLY)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "== installing rollonce with its extras and the test tools into $(VENV) (some minutes the first time)"
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,docs,embed,train,inspect,trl,ray]' $(QUIETLY)
	@touch $(VENV)/.train $@

clean:
	rm -rf $(VENV) .venv-tinker .venv-wheel out
