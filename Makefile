.PHONY: build
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

build:
	$(BIN)/pip install --quiet --no-build-isolation -e .
