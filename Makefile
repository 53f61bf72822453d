# Requirements: make, and Python 3.11 or newer with pip. Each target installs everything else that it needs.

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
UV    := $(BIN)/uv

# hatch_build.py generates a Python module from each of them.
PROTOS := $(wildcard src/assay/sandbox/rpc/messages/*.proto)

# The first Python 3.11 or newer in PATH. Evaluated only when .venv is created.
PYTHON = $(shell for name in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)

# The base of the container images: any image with Python 3.11 or newer.
BASE_IMAGE := python:3.11-slim
# More extras for the executor image, each after a comma. Example: `,docker`.
EXECUTOR_EXTRAS :=

# The folder below examples/goals that `make run` uses.
GOAL := anagrams

.PHONY: help run test test-slow test-backends engine images secrets check bench bench-agent fix seccomp lock dist clean

help:
	@echo 'make run            run the example goal examples/goals/anagrams with the embedded model, and verify the result'
	@echo 'make test           run the tests (ARGS="-k files" for some of them)'
	@echo 'make test-slow      run the slow tests: a kill at every point, all known forgeries'
	@echo 'make test-backends  run the suites on all other backends, compose and benchmark languages (slow; see make engine)'
	@echo 'make engine         install and start Docker with gVisor, and create a base image (Debian, root)'
	@echo 'make images         build the images of compose.yaml (BASE_IMAGE=... for another base image)'
	@echo 'make secrets        create certificates and tokens for compose.yaml in deploy/secrets'
	@echo 'make check          check formatting, lint, import rules, types and function sizes'
	@echo 'make bench          measure the sandbox, and other installed sandboxes for comparison'
	@echo 'make bench-agent    measure the controller, then the agent against a single reply of the same model'
	@echo 'make fix            format the code and apply the automatic fixes of the linter'
	@echo 'make seccomp        regenerate deploy/seccomp.json'
	@echo 'make lock           regenerate requirements.lock (ARGS=--upgrade for newer versions)'
	@echo 'make dist           build the wheel and the source distribution in dist/'
	@echo 'make clean          remove everything that the other targets created'

# Works on a copy, so that the example can be run again.
run: $(READY)
	@rm -rf build/run && mkdir -p build && cp -r examples/goals/$(GOAL)/workspace build/run
	@$(BIN)/assay run "$$(cat examples/goals/$(GOAL)/goal.md)" --workspace build/run --model local --yes $(ARGS)
	@$(BIN)/assay verify build/run/.assay/*.certificate.json

test: $(READY)
	@$(BIN)/pytest --numprocesses auto --dist loadfile $(ARGS)

test-slow: $(READY)
	@$(BIN)/pytest -m slow --numprocesses auto --dist loadfile $(ARGS)

test-backends: $(READY)
	@$(BIN)/pytest -m backends --numprocesses auto --dist loadfile $(ARGS)

engine:
	@.ci/engine

images: $(READY)
	@$(BIN)/python deploy/wheels.py --pip '$(PYTHON) -m pip' $(BASE_IMAGE)
	@for name in executor mcp api; do \
		docker build --quiet --network none --file deploy/$$name.Dockerfile \
			--build-arg BASE_IMAGE=$(BASE_IMAGE) \
			$$([ $$name != executor ] || echo --build-arg EXTRAS=$(EXECUTOR_EXTRAS)) \
			--tag assay-$$name build/images || exit 1; done

secrets: $(READY)
	@ASSAY=$(BIN)/assay deploy/secrets.sh

check: $(READY)
	@$(BIN)/ruff format --check --quiet . || { echo 'hint: run `make fix`'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo --config pyproject.toml
	@$(BIN)/pyright --warnings
	@$(BIN)/python -m tests.support.sizes

bench: $(READY)
	@$(BIN)/python benchmarks/sandbox.py $(ARGS)

bench-agent: $(READY)
	@$(BIN)/python benchmarks/controller.py
	@$(BIN)/python benchmarks/agent.py $(ARGS)

fix: $(READY)
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

seccomp: $(READY)
	@$(BIN)/python -c 'import json; from assay.sandbox.docker.security import build_profile; \
		print(json.dumps(build_profile("x86_64"), indent=1))' > deploy/seccomp.json

lock: $(READY)
	@$(UV) pip compile pyproject.toml --group dev --extra all --universal --python-version 3.11 \
		--generate-hashes --no-annotate --custom-compile-command 'make lock' --quiet \
		--output-file requirements.lock $(ARGS)

# Built from the locked build backend, so that no build dependency is downloaded.
dist: $(READY)
	@rm -rf dist
	@$(UV) build --quiet --offline --no-build-isolation --python $(BIN)/python --out-dir dist

clean:
	rm -rf $(VENV) build dist $(PROTOS:.proto=_pb2.py) $(PROTOS:.proto=_pb2.pyi) .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip installs uv, and uv installs everything else, all of it by the hashes in the lock file. uv does not
# read pip's configuration. If only pip knows the package index, pip installs everything.
# Bytecode is compiled now. Otherwise, users without write access would compile it at every start.
# The installation of Assay itself generates the protobuf modules (hatch_build.py), so uv must not use its cache.
$(READY): requirements.lock pyproject.toml hatch_build.py $(PROTOS) $(PROTOS:.proto=_pb2.py)
	@echo 'setting up $(VENV)'
	@$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear --without-pip $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.lock
	@$(UV) --version >/dev/null 2>&1 || \
		$(PYTHON) -m pip --quiet --python $(BIN)/python install --require-hashes -r $(VENV)/uv.lock
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock || \
		$(PYTHON) -m pip --quiet --python $(BIN)/python install --require-hashes -r requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --offline --no-cache --no-build-isolation --no-deps --editable .
	@touch $@

# A missing module counts as changed.
$(PROTOS:.proto=_pb2.py): ;
