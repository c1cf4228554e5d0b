# Penstock. `make help` lists the targets; every one sets up what it needs.

PYTHON ?= $(shell sh scripts/python.sh)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JAR := services/penstock/spark/jars/penstock-spark.jar
JAVA_SOURCES := $(shell find spark-jobs/connector -name '*.java' 2>/dev/null)
COMPILED := services/penstock/built.json
HOT_SOURCES := $(shell sed -n 's|^    "penstock\.\(.*\)",$$|\1|p' services/penstock/compiled.py | tr . / | sed 's|.*|services/penstock/&.py|')

PURE_TESTS := $(addprefix tests/unit/test_,log.py records.py wire_messages.py shm_words.py shm_kill.py)

# Real processes share two noisy cores here: what fails is tried once more, and the summary names it.
AGAIN := --reruns 1 -r R --timeout 300

.PHONY: help demo test lint types unit pure compile fuzz bench clean constraints wheel system

help:  ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(READY): pyproject.toml constraints.txt
	@echo "==> virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[spark,dev]'
	@touch $@

system:
	@sh scripts/system-packages.sh

$(JAR): $(JAVA_SOURCES) $(READY) | system
	@echo "==> Spark connector"
	@$(BIN)/python -m penstock.spark.build

# Without a C compiler all works the same, slower. Edited sources are taken until this has run again.
$(COMPILED): $(HOT_SOURCES) services/penstock/compiled.py setup.py $(READY) | system
	@if $(BIN)/python scripts/can_compile.py; then \
	  echo "==> hot path, compiled by mypyc (about a minute)"; \
	  PENSTOCK_COMPILE=1 $(BIN)/python setup.py --quiet build_ext --inplace --parallel 2; \
	else echo "==> no C compiler: the hot path stays Python"; fi

compile: $(COMPILED)  ## compile the hot path to C extensions beside its sources

demo: $(READY) $(JAR) $(COMPILED)  ## the whole thing on this machine, with live figures, in about two minutes
	@$(BIN)/penstock demo

test: lint types unit  ## everything: lint, types, unit, integration, Spark, faults

lint: $(READY)
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@echo "==> mypy --strict"
	@$(BIN)/mypy

unit: pure $(READY) $(JAR) $(COMPILED)
	@echo "==> pytest (not Spark), 2 workers"
	@$(BIN)/pytest -n 2 --dist loadfile $(AGAIN) -m "not spark" tests
	@echo "==> pytest (Spark)"
	@$(BIN)/pytest $(AGAIN) -m spark tests

pure: $(READY)
	@echo "==> pytest, the modules that are compiled, as Python"
	@PENSTOCK_PURE=1 $(BIN)/pytest -n 2 --dist loadfile $(AGAIN) $(PURE_TESTS)

fuzz: $(READY) $(COMPILED)  ## a million mutated frames against a real broker
	@FUZZ_FRAMES=1000000 $(BIN)/pytest tests/integration/test_fuzz.py --timeout 7200

bench: $(READY) $(JAR) $(COMPILED)  ## measure: ingest, fetch, push, recovery
	@$(BIN)/penstock bench all

wheel: $(READY) $(JAR) | system  ## build the wheel, connector and compiled hot path inside, into dist/
	@PENSTOCK_COMPILE=$$($(BIN)/python scripts/can_compile.py && echo 1) \
	  $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .

constraints:  ## write constraints.txt anew from the newest versions that fit pyproject.toml
	@rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	@build/constraints/bin/pip install --quiet '.[spark,dev]'
	@(echo "# Exact versions, made by 'make constraints'. No addresses: whatever index pip is set up with serves them."; \
	  build/constraints/bin/pip freeze --exclude penstock) > constraints.txt

clean:  ## remove everything that was built
	rm -rf $(VENV) build dist artifacts .mypy_cache .ruff_cache .pytest_cache services/penstock/spark/jars $(COMPILED)
	find services -name '*.so' -delete
