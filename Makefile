# What a newcomer, a developer and CI type; `make` alone lists it. Everything is kept in .venv, build/
# and the model cache (~/.cache/ellm), and nothing is done twice.

PYTHON ?= python3
SECONDS ?= 60
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/done
DEMO_DOCUMENTS := examples/documents
DEMO_QUESTION := Name the Client and the Provider of this agreement.
SMALL_MODELS := smollm2-135m gemma3-270m
LARGE_MODELS := qwen2.5-coder-0.5b qwen2.5-coder-1.5b

NATIVE := $(sort $(shell find native -name '*.cc' -o -name '*.h'))
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## List these targets.
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

## For users

.PHONY: demo
demo: $(DONE)/installed ## Set everything up and answer a question about a long document.
	@echo "demo: $(BIN)/ellm ask $(DEMO_DOCUMENTS) -p '$(DEMO_QUESTION)'"
	@echo "demo: the default model (98 MB) is fetched into ~/.cache/ellm unless it is there"
	@$(BIN)/ellm ask $(DEMO_DOCUMENTS) -p '$(DEMO_QUESTION)'
	@echo "demo: done; your own: $(BIN)/ellm ask FILES-AND-FOLDERS -p 'QUESTION', -m qwen2.5-coder-1.5b for a better model"

## Setting up: one file in $(DONE) per thing that is done

$(DONE)/venv:
	@missing=$$(PYTHON=$(PYTHON) .ci/missing-packages build | tr '\n' ' '); if [ -n "$$missing" ]; then \
	  echo "This machine lacks: $$missing" >&2; \
	  echo "On Debian 12:  sudo apt-get install -y --no-install-recommends $$missing" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  f"eLLM needs Python 3.11 or newer, $(PYTHON) is {sys.version.split()[0]}; name another: make PYTHON=python3.11 ...")'
	@echo "setup: a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@mkdir -p $(DONE) && touch $@

# `make` compares pyproject.toml with each: a changed pin is installed.
$(DONE)/%-tools: pyproject.toml | $(DONE)/venv
	@echo "setup: the packages of pyproject.toml's group '$*'"
	$(BIN)/python -m pip install --quiet --group $*
	@touch $@

$(DONE)/installed: pyproject.toml CMakeLists.txt $(NATIVE) | $(DONE)/build-tools
	@echo "setup: compiling the native core (minutes the first time) and installing eLLM into $(VENV)"
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable .
	@touch $@

.PHONY: build
build: $(DONE)/installed ## Compile the native core and install the package, editable.

.PHONY: small-models large-models
small-models: $(DONE)/installed ## Fetch the two models that `make test` reads (350 MB).
	@for name in $(SMALL_MODELS); do $(BIN)/ellm pull $$name; done
large-models: $(DONE)/installed
	@for name in $(LARGE_MODELS); do $(BIN)/ellm pull $$name; done

## Testing

.PHONY: test
test: $(DONE)/installed $(DONE)/test-tools small-models ## Run the tests, set-up included.
	ELLM_REQUIRE_MODELS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: test-models
test-models: $(DONE)/installed $(DONE)/test-tools small-models large-models ## Run all tests, also those of the large models (2 GB).
	ELLM_REQUIRE_MODELS=1 $(BIN)/python -m pytest -m "" $(PYTEST_ARGS)

.PHONY: fuzz
fuzz: $(DONE)/installed $(DONE)/test-tools ## Fuzz the GGUF reader and the tokenizer builder, SECONDS=60 each.
	tests/fuzz/run.sh $(SECONDS)
	$(BIN)/python tests/fuzz/fuzz_tokenizer.py --seconds $(SECONDS)

# -S leaves out the editable install, which would come first.
.PHONY: asan
asan: $(DONE)/installed $(DONE)/test-tools ## Run the native tests under AddressSanitizer and UBSan.
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --upgrade --target build/asan/site . \
	  --config-settings build-dir=build/asan/objects \
	  --config-settings cmake.build-type=Debug \
	  --config-settings cmake.define.CMAKE_CXX_FLAGS="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	PYTHONPATH=build/asan/site:$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  $(BIN)/python -S -m pytest tests/kernels tests/conformance tests/malformed \
	  tests/unit/speculative/test_suffix_index.py $(PYTEST_ARGS)

## Checking

.PHONY: check
check: check-format check-lint check-types check-layers check-native check-architecture ## Formats, lint, types, layers, the laws of the tree.

.PHONY: check-format check-lint check-types check-layers check-native check-architecture
check-format: $(DONE)/check-tools
	$(BIN)/ruff format --quiet --check .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)
check-lint: $(DONE)/check-tools
	$(BIN)/ruff check --quiet .
check-types: $(DONE)/check-tools $(DONE)/installed
	$(BIN)/mypy
check-layers: $(DONE)/test-tools $(DONE)/installed
	$(BIN)/lint-imports --no-cache --no-logo
check-native: $(DONE)/tidy
check-architecture: $(DONE)/test-tools $(DONE)/installed
	$(BIN)/python -m pytest tests/architecture

# Kernels are left out: they are intrinsics, which tests hold bit by bit.
TIDY := $(filter-out native/kernels/% native/fuzz/%,$(filter %.cc,$(NATIVE)))
$(DONE)/tidy: .clang-tidy $(NATIVE) | $(DONE)/check-tools $(DONE)/installed
	@echo "clang-tidy: $(words $(TIDY)) files"
	@printf '%s\n' $(TIDY) | xargs -P "$$(nproc)" -n 4 $(BIN)/clang-tidy --quiet --use-color \
	  -p "$$(dirname build/cp*/compile_commands.json)"
	@touch $@

.PHONY: fix
fix: $(DONE)/check-tools $(DONE)/installed ## Format and mend what tools can, and make docs/cli.md again.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(NATIVE)
	$(BIN)/python docs/make_cli.py

.PHONY: clean
clean: ## Remove everything that was made here; models stay in their cache.
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
