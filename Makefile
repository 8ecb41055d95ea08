# `make help` lists the targets. Each one first installs its requirements into .venv. ARGS is added to its command:
# make test ARGS='-x tests/loading/test_loader.py'

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CODE   := wds_tools tests examples
BUILDS_DOCS := docs/build_site.py
COMPILED := $(wildcard wds_tools/images/csrc/*.* wds_tools/images/csrc/abi3/*)
# Compiled modules and tests are kept in __pycache__: the suite starts Python several hundred times.
export PYTHONDONTWRITEBYTECODE :=
# Number of parallel test processes, for two cores: many tests wait, and many start workers themselves.
JOBS   ?= 3
# Version of Python on the machine with a GPU, for `make gpu-wheels`.
GPU_PYTHON ?= 3.12
# Threads of OpenMP wait for each other by spinning when more processes than cores run: 15 % more CPU time.
test cov torture torture-night: export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint format cov sanitize emulated interop torture torture-night lowest docs bench profile gpu gpu-wheels wheels clean

help: ## list the targets
	@while read -r line; do case "$$line" in [a-z]*:*' ## '*) \
	  printf '  make %-14s%s\n' "$${line%%:*}" "$${line##*## }";; esac; done < Makefile

demo: $(VENV)/installed ## pack the sample photographs, verify them, stream them and train on them: a minute at most
	@$(BIN)/python examples/demo.py

test: lint ## run the linters and the whole test suite
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

lint: $(VENV)/installed-test ## run ruff and mypy
	@$(BIN)/ruff check $(CODE) $(BUILDS_DOCS)
	@$(BIN)/ruff format --check $(CODE) $(BUILDS_DOCS)
	@$(BIN)/mypy

format: $(VENV)/installed-test ## format the code, and apply the automatic fixes of the linter
	@$(BIN)/ruff check --fix $(CODE) $(BUILDS_DOCS)
	@$(BIN)/ruff format $(CODE) $(BUILDS_DOCS)

cov: $(VENV)/installed-test ## run the test suite and report the lines and branches that no test reaches
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --cov --cov-report=term $(ARGS)

sanitize: $(VENV)/installed-test ## run the tests and the fuzzer of the C code with AddressSanitizer and UBSan
	@$(BIN)/python -m pytest tests/images/test_csrc.py
	@$(BIN)/python tests/sanitize.py $(ARGS)

emulated: $(VENV)/installed-test ## compare the pixels that other processors decode, with qemu-user (Debian: qemu-user)
	@$(BIN)/python -m pytest -m emulated $(ARGS)

# aiobotocore is named so that pip chooses it before boto3; otherwise it tries all versions of s3fs and of torch.
interop: ## read exported datasets with DALI, Energon, LitData, Ray Data and wids; pack what TensorFlow, Streaming and LitData write
	@$(PYTHON) -m venv build/interop
	@build/interop/bin/python -m pip install -qq --disable-pip-version-check 'aiobotocore>=2.12' --editable '.[test-lowest]' \
	  'megatron-energon>=7.4,<8' 'wids>=0.1.11' 'nvidia-dali-cuda130>=2.4' \
	  'litdata>=0.2.76' zstd 'ray[data]>=2.40'
	@build/interop/bin/python -m pytest -m interop tests/upkeep/test_exporter.py $(ARGS)
	@build/interop/bin/python -m pytest -m peers -k DALI tests/test_migrate.py
	@$(PYTHON) -m venv build/writers
	@build/writers/bin/python -m pip install -qq --disable-pip-version-check \
	  'tensorflow-cpu>=2.21' 'mosaicml-streaming>=0.13' 'litdata>=0.2.76' zstd pillow
	@for writer in tfrecord mds litdata; do \
	  build/writers/bin/python tests/interop_writers.py $$writer build/foreign/$$writer || exit 1; done
	@FOREIGN_FILES=build/foreign build/interop/bin/python -m pytest \
	  tests/sources/test_tfrecord.py tests/sources/test_mds.py tests/sources/test_litdata.py $(ARGS)

torture: $(VENV)/installed-test ## run the long fault and fuzz tests, and 500 examples of each property: an hour
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m '(torture and not night) or hypothesis' --hypothesis-profile torture \
	  --timeout 3600 $(ARGS)

torture-night: $(VENV)/installed-test ## run the longest of them, and 10,000 examples of each property: a night
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'night or hypothesis' --hypothesis-profile night \
	  --timeout 14400 $(ARGS)

lowest: ## run the test suite with the lowest versions of what wds_tools and its extras require, in build/lowest
	@$(PYTHON) -m venv build/lowest
	@$(PYTHON) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; e = p["optional-dependencies"]; \
	  print(*p["dependencies"], *e["serve"], *e["s3"], *e["sources"], sep="\n")' | tr '>' '=' > build/lowest/constraints.txt
	@build/lowest/bin/python -m pip install -qq -c build/lowest/constraints.txt --editable '.[test-lowest]' \
	  'aiobotocore[boto3]<3'  # for the lowest s3fs; its extra boto3 names the version, which pip fails to find by itself
	@build/lowest/bin/python -m pytest -n $(JOBS) --dist worksteal -m 'not (frameworks or torture or peers or emulated)' $(ARGS)

docs: $(VENV)/installed-docs ## build the documentation site, without network, in build/docs
	@$(BIN)/python docs/build_site.py $(ARGS)

bench: $(VENV)/installed ## compare the loader with its peers on the sample photographs: a few minutes
	@$(BIN)/wds-tools pack shards/sample/images shards/bench --shard-bytes 1MB --images keep
	@$(BIN)/wds-tools bench shards/bench $(ARGS)

profile: $(VENV)/installed ## profile the loader on the sample photographs: functions and stages
	@$(BIN)/python examples/profile_loader.py $(ARGS)

gpu: ## run the tests and the benchmark that need a GPU, in the Python that PYTHON= names: 9 minutes at most, no network
	@$(PYTHON) tests/gpu_run.py $(ARGS)

gpu-wheels: $(VENV)/installed-test ## collect what make gpu needs on a machine without network, for Python GPU_PYTHON=3.12
	@$(BIN)/python tests/gpu_wheels.py $(GPU_PYTHON)

wheels: ## build wheels for Linux (glibc and musl) and macOS, and check them: in dist
	@$(PYTHON) -m venv build/wheels
	@build/wheels/bin/python -m pip install -qq --disable-pip-version-check build 'setuptools>=77' 'ziglang>=0.17,<0.18' auditwheel abi3audit 'twine>=6.1'
	@build/wheels/bin/python tests/wheels.py dist

clean: ## remove the files that demo, bench and test wrote, but not .venv
	rm -rf build dist .cache shards/demo shards/bench .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf $(wildcard $(foreach depth,/ /*/ /*/*/,$(addsuffix $(depth)__pycache__,$(CODE))))

# One stamp file per set of packages: they are installed again only if pyproject.toml or the C sources have changed.
$(VENV)/installed: pyproject.toml $(COMPILED) | $(BIN)/python
	@echo "installing wds_tools and what it needs into $(VENV) (torch is large: this takes minutes, once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable .
	@$(BIN)/wds-tools --version
	@touch $@

$(VENV)/installed-test: pyproject.toml tests/install_browser.py $(COMPILED) | $(BIN)/python
	@echo "installing wds_tools, what it needs and what tests it into $(VENV) (torch is large: this takes minutes, once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[test]'
	@$(BIN)/python tests/install_browser.py
	@$(BIN)/wds-tools --version
	@touch $(VENV)/installed $@

$(VENV)/installed-docs: pyproject.toml $(COMPILED) | $(BIN)/python
	@echo "installing wds_tools and what builds its documentation into $(VENV) (torch is large: this takes minutes, once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[docs]'
	@touch $(VENV)/installed $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "wds_tools needs Python 3.11 or newer, but $(PYTHON) is: $$($(PYTHON) --version 2>/dev/null || echo not found)"; \
	  echo "name another one, such as: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.11"; exit 1; } >&2
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"; \
	  exit 1; } >&2
