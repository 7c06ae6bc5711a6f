# Every target sets up what it needs in .venv; PIP_ARGS is passed to pip, for example
#   make demo PIP_ARGS="--index-url URL"     to choose another index or a CPU build of torch.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Two workers of one thread each use two cores without fighting over them.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help demo test check bench docs test-slow test-apt test-docs test-gpu bench-gpu clean

help:
	@echo "make demo       simulate, train, distil, index, serve, rank, report (about 2 minutes on 2 cores, once installed)"
	@echo "make test       the test suite"
	@echo "make check      format, lint, types, import layers"
	@echo "make test-slow  long kill, fuzz and quality runs"
	@echo "make test-apt   what needs Debian packages: the report page and the console in Chromium, Redis over TLS (chromium, redis-server, openssl)"
	@echo "make test-docs  every code block, the tutorial, the notebook and the site of docs/ run as they stand        make docs  build the site"
	@echo "make bench      the benchmarks, each with its targets checked"
	@echo "make test-gpu   tests that need a CUDA device        make bench-gpu  benchmarks that need one"
	@echo "make clean      remove what the other targets made"

demo: $(VENV)/.train
	$(BIN)/adsieve demo

test: $(VENV)/.dev
	$(TEST_ENV) $(PYTEST) -n 2 --dist worksteal

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-slow: $(VENV)/.dev
	$(PYTEST) -m slow --timeout 3600

test-apt: $(VENV)/.dev
	$(PYTEST) -m apt

test-docs: $(VENV)/.dev
	$(PYTEST) -m docs --timeout 1800

docs: $(VENV)/.dev
	$(BIN)/python -m docs.write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.simulate --check
	$(BIN)/python -m benchmarks.heavy_serving --check
	$(BIN)/python -m benchmarks.heavy_training --check
	$(BIN)/python -m benchmarks.funnel_recall --check
	$(BIN)/python -m benchmarks.heavy_simulated --check
	$(BIN)/python -m benchmarks.heavy_warmstart
	$(BIN)/python -m benchmarks.heavy_alignment
	$(BIN)/python -m benchmarks.distill_training --check
	$(BIN)/python -m benchmarks.distill_quality --check
	$(BIN)/python -m benchmarks.index_build --check
	$(BIN)/python -m benchmarks.id_lookup --check
	$(BIN)/python -m benchmarks.publish --check
	$(BIN)/python -m benchmarks.retrieval_recall --check
	$(BIN)/python -m benchmarks.feedback --check
	$(BIN)/python -m benchmarks.serving_client --check
	$(BIN)/python -m benchmarks.overload --check
	$(BIN)/python -m benchmarks.soak --check
	$(BIN)/python -m benchmarks.serving --check --pip-args="$(PIP_ARGS)"
	@if [ -d out/demo/heavy ]; then \
	    $(BIN)/python -m benchmarks.updates --check --two-tower out/demo/shopping/bundle --heavy out/demo/heavy --ads out/demo/log/ads; \
	else echo "benchmarks.updates: skipped, make demo has not run"; fi
ifdef ADSIEVE_KUAIRAND
	$(BIN)/python -m benchmarks.real_log "$(ADSIEVE_KUAIRAND)" --check
	$(BIN)/python -m benchmarks.heavy_real_log "$(ADSIEVE_KUAIRAND)" --check
	$(BIN)/python -m benchmarks.distill_real_log "$(ADSIEVE_KUAIRAND)" --check
else
	@echo "benchmarks.real_log, heavy_real_log and distill_real_log: skipped, ADSIEVE_KUAIRAND is not set"
endif

test-gpu: $(VENV)/.dev
	$(PYTEST) -m gpu

bench-gpu: $(VENV)/.dev
	$(BIN)/python -m benchmarks.gpu_serving
	$(BIN)/python -m benchmarks.gpu_training

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"adsieve needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: $(BIN)/python requirements/base.txt requirements/serve.txt requirements/learn.txt requirements/train.txt requirements/torchrec.txt pyproject.toml
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -r requirements/train.txt
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --no-deps -r requirements/torchrec.txt
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --no-deps --editable .
	$(BIN)/python -c 'import torchrec' # a pair of torch and fbgemm that does not match fails here, not in a training run
	touch $@

$(VENV)/.dev: $(VENV)/.train requirements/dev.txt requirements/ray.txt requirements/mlflow.txt requirements/docs.txt requirements/axe.txt
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --no-deps -r requirements/axe.txt
	touch $@

clean:
	rm -rf $(VENV) build out *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
