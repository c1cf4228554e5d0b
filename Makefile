# Penstock. `make help` lists the targets; every one sets up what it needs.

PYTHON ?= $(shell sh scripts/python.sh)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JAR := services/penstock/spark/jars/penstock-spark.jar
JAVA_SOURCES := $(shell find spark-jobs/connector -name '*.java' 2>/dev/null)
COMPILED := services/penstock/built.json
HOT_SOURCES := $(shell sed -n 's|^    "penstock\.\(.*\)",$$|\1|p' services/penstock/compiled.py | tr . / | sed 's|.*|services/penstock/&.py|')

PURE_TESTS := $(addprefix tests/unit/test_,log.py produce.py records.py wire_messages.py shm_words.py shm_kill.py \
                replication.py replication_link.py replication_chaos.py)

# Real processes share two noisy cores here: what fails is tried once more, and the summary names it. But not a verdict on
# records (tests/harness.py): what was lost once is not found again by another try.
AGAIN := --reruns 1 --rerun-except '^Violation:' -r R --timeout 300

.PHONY: help demo test test-compose test-k8s chart lint types unit pure compile fuzz simulate chaos bench clean constraints wheel system

help:  ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(READY): pyproject.toml constraints.txt
	@echo "==> virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[spark,bench,dev]'
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
	@$(BIN)/pytest -n 2 --dist loadfile $(AGAIN) -m "not spark and not compose and not k8s" tests
	@echo "==> pytest (Spark)"
	@$(BIN)/pytest $(AGAIN) -m spark tests

pure: $(READY)
	@echo "==> pytest, the modules that are compiled, as Python"
	@PENSTOCK_PURE=1 $(BIN)/pytest -n 2 --dist loadfile $(AGAIN) $(PURE_TESTS)

test-compose: $(READY)  ## docker compose up, kills and restarts, with a Docker engine of its own if need be
	@echo "==> pytest (compose)"
	@scripts/with-docker $(BIN)/pytest -v -x -s --durations 0 -m compose tests/compose

test-k8s: $(READY) $(JAR)  ## the Helm chart on a real Kubernetes, built from source if need be (root; 10 minutes the first time)
	@echo "==> pytest (Kubernetes)"
	@$(BIN)/pytest -v -x -s --durations 0 --timeout 1800 -m k8s tests/k8s

chart:  ## copy into the Helm chart what it ships of the rest of the project
	@rm -rf k8s/penstock/dashboards k8s/penstock/rules
	@mkdir k8s/penstock/dashboards k8s/penstock/rules
	@find grafana/dashboards -name '*.json' -exec cp -t k8s/penstock/dashboards {} +
	@find grafana/prometheus/rules -name '*.yml' -exec cp -t k8s/penstock/rules {} +

fuzz: $(READY) $(COMPILED)  ## a million mutated frames against a real broker
	@FUZZ_FRAMES=1000000 $(BIN)/pytest tests/integration/test_fuzz.py --timeout 7200

SEED ?= 1
simulate: $(READY) $(COMPILED)  ## thousands of schedules of faults on a simulated cluster, for MINUTES=1, from SEED=1; SCHEDULES=1 SEED=n: that one, with its log
	@PYTHONPATH=tests/unit $(BIN)/python -m simulate --seed $(SEED) \
	    $(if $(SCHEDULES),--schedules $(SCHEDULES),--minutes $(or $(MINUTES),1))

chaos: $(READY) $(COMPILED) | system  ## faults on a real cluster for MINUTES=60 or ROUNDS=n, from SEED=1, with timeline, plot and verdict; GROUND=proxies: without namespaces
	@PYTHONPATH=tests:tests/faults $(BIN)/python -m chaos $(if $(ROUNDS),--rounds $(ROUNDS),--minutes $(or $(MINUTES),60)) --seed $(SEED) \
	    $(if $(GROUND),--ground $(GROUND)) --out artifacts/chaos/seed-$(SEED)-$$(date +%Y%m%d-%H%M%S)

bench: $(READY) $(JAR) $(COMPILED)  ## measure everything, in about 75 minutes; QUICK=1: in ten; REPEAT=3: what compare needs
	@$(BIN)/penstock bench all $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(REPEAT),--repeat $(REPEAT))

wheel: $(READY) $(JAR) | system  ## build the wheel, connector and compiled hot path inside, into dist/
	@PENSTOCK_COMPILE=$$($(BIN)/python scripts/can_compile.py && echo 1) \
	  $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .

constraints:  ## write constraints.txt anew from the newest versions that fit pyproject.toml
	@rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	@build/constraints/bin/pip install --quiet '.[spark,bench,dev]'
	@(echo "# Exact versions, made by 'make constraints'. No addresses: whatever index pip is set up with serves them."; \
	  build/constraints/bin/pip freeze --exclude penstock) > constraints.txt

clean:  ## remove everything that was built
	rm -rf $(VENV) build dist artifacts .mypy_cache .ruff_cache .pytest_cache services/penstock/spark/jars $(COMPILED)
	find services -name '*.so' -delete
