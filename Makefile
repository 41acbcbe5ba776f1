PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH ?= torch==2.13.0

.PHONY: help demo test nightly fuzz check format bench clean

help:
	@echo "make demo   run a real LLM and a real encoder      make test   the tests"
	@echo "make fuzz   10,000 random graphs, for a night      make nightly slow tests"
	@echo "make check  format, lint, types, imports, counts   make bench  tables in docs/benchmarks.md"

$(VENV)/base: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) "$(TORCH)"
	$(PIP) -e ".[llm]"
	@touch $@

$(VENV)/dev: $(VENV)/base
	$(PIP) -e ".[dev]" transformers expecttest
	@touch $@

$(VENV)/bench: $(VENV)/dev
	$(PIP) onnx onnxscript onnxruntime openvino xllamacpp matplotlib
	@touch $@

demo: $(VENV)/base
	$(PIP) safetensors transformers
	$(BIN)/python examples/demo.py

test: $(VENV)/dev
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

nightly: $(VENV)/dev
	$(BIN)/python -m pytest -m nightly

fuzz: $(VENV)/dev
	$(BIN)/python -m tests.fuzz --count 10000

check: $(VENV)/dev
	$(BIN)/ruff format --check luminal tests benchmarks examples
	$(BIN)/ruff check luminal tests benchmarks examples
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_style.py

format: $(VENV)/dev
	$(BIN)/ruff format luminal tests benchmarks examples
	$(BIN)/ruff check --fix luminal tests benchmarks examples

bench: $(VENV)/bench
	$(BIN)/python benchmarks/suite.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
