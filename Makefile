# `make demo` and `make test` need nothing but Python >= 3.11: they make their own virtual environment in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Extra arguments of the PyTorch install only, for whoever wants another build of it than their package index's default.
TORCH_PIP_ARGS ?=

# Which build of ONNX Runtime is installed: gpu, which also computes on CPUs, or cpu, which is 230 MB less to download. An
# environment can hold only one of the two. Unless it is named here, the tests take gpu, and the demo cpu where there is no GPU.
RUNTIME ?=
GPU := $(wildcard /dev/nvidiactl)
DEMO_RUNTIME = $(or $(RUNTIME),$(if $(GPU)$(wildcard $(VENV)/.dev-ready),gpu,cpu))
export HEADMASK_RUNTIME = $(or $(RUNTIME),gpu)

# Processes that share the tests: one more than two cores, because tests of servers wait half of their time. Each gives
# PyTorch one thread, so that they do not wait for each other's. Bytecode is kept: tests start many processes.
TEST_JOBS ?= 3

PROTOS := $(wildcard protos/hmc/v1/*.proto) protos/buf/validate/validate.proto

.DEFAULT_GOAL := help
.PHONY: help demo test check lint format protos docs site release clean distclean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo-ready ## Compile, serve, query and benchmark the embedded model at six levels
	$(BIN)/hmc demo

test: $(VENV)/.dev-ready ## Run every test, TEST_JOBS at a time
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal

# Which tests a change concerns is asked of git: the commit that SINCE names is what the change is compared with.
SINCE ?= origin/main

check: lint ## Check style and types, and run the quick tests that the change since SINCE concerns
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(TEST_JOBS) --dist worksteal -m 'not slow' \
	  --ignore tests/guards/test_clean_install.py $$($(BIN)/python -m tests.changed $(SINCE))

lint: $(VENV)/.dev-ready ## Check style, types and the imports between rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev-ready ## Fix what can be fixed mechanically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(VENV)/.dev-ready ## Regenerate the committed gRPC stubs and the synchronous client
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=protos --pyi_out=protos --grpc_python_out=protos $(PROTOS)
	$(BIN)/python -m tests.sync_client

docs: $(VENV)/.dev-ready ## Write the pages and the picture that are made from the code, and the tutorial's script
	$(BIN)/python -m tests.pages
	$(BIN)/python -m tests.openapi
	$(BIN)/python -m tests.levels_picture docs/quality.svg
	$(BIN)/python -m hmc.cli.reference docs/commands.md
	$(BIN)/python -m tests.tutorial examples/tutorial.sh

site: $(VENV)/.site-ready ## Build the site of the documents into build/site; dead links and anchors fail
	$(BIN)/zensical build --clean --strict
	$(BIN)/python -m tests.site build/site

release: $(VENV)/.dev-ready ## Build wheel, source distribution, bills of materials and checksums into dist/
	$(BIN)/python .ci/release.py

clean: ## Remove build output and caches; trained models and .venv stay
	rm -rf build dist .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find protos compiler training engine serving benchmark pipelines cli experiments tests -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## Remove .venv too
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "HMC needs Python >= 3.11, and $(PYTHON) is older or missing. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What `hmc demo` needs: serving, the compiler and the plot. No PyTorch.
$(VENV)/.demo-ready: pyproject.toml hatch_build.py constraints.txt | $(BIN)/python
	@echo "Installing what the demo needs into $(VENV), with ONNX Runtime for $(DEMO_RUNTIME): a minute or two."
	@HEADMASK_RUNTIME=$(DEMO_RUNTIME) $(PIP) install --quiet -e '.[demo]' -c constraints.txt
	@touch $@

# Everything. PyTorch comes first and by its exact version: left to the resolver, a range takes the newest build there
# is, with several gigabytes of libraries that nothing here is tested with. Most of the files are never imported: those
# that are get their bytecode when they first are.
$(VENV)/.dev-ready: pyproject.toml hatch_build.py constraints.txt | $(BIN)/python
	@$(if $(GPU)$(TORCH_PIP_ARGS),,echo "There is no GPU here, and PyTorch for GPUs is several gigabytes to download. To take the small build" \
	  "for CPUs, stop this and type: make TORCH_PIP_ARGS='--index-url https://download.pytorch.org/whl/cpu' $(MAKECMDGOALS)")
	@$(if $(filter gpu,$(HEADMASK_RUNTIME)),$(PIP) uninstall --quiet --yes onnxruntime,$(PIP) uninstall --quiet --yes onnxruntime-gpu)
	$(PIP) install --no-compile torch==2.13.0 $(TORCH_PIP_ARGS)
	$(PIP) install --no-compile -e '.[dev]' -c constraints.txt
	@touch $@ $(VENV)/.demo-ready

# The builder of the site alone.
$(VENV)/.site-ready: pyproject.toml hatch_build.py constraints.txt | $(BIN)/python
	$(PIP) install -e '.[docs]' -c constraints.txt
	@touch $@
