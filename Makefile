# make run    set up, then measure the quickstart campaign (with EXTRA=cuda… and a GPU: learn-quickstart), train, and report
# make test   set up, then run every test but the long ones; ORDER=7 shuffles the tests of each file, the same way each time
# make test-all  the same, and the long ones: farms with all their programs, README and tutorial, datasets replayed, pages in each variant, chaos
# make long   set up, then run the long tests alone
# make test-release  set up, then run the tests of a release: packages built, and installed into clean environments
# make chaos  set up, then break a farm for three minutes and audit it; SEED=7 repeats a run, SECONDS=300 is longer
# make soak   the same for an hour on hosts of its own (network namespaces, which need root), with 10 owners
# make attack set up, then attack farms as a neighbour, token holder, worker host, local user and service would, and count what held
# make lint   set up, then hold the code and the prose to their standards
# make dist   set up, then build the sdist, the wheel and bills of materials of the last commit into dist/
# make docs   set up, then build the documentation site into build/site; warnings are errors
#
# Nothing but Python 3.11 or 3.12 is needed. PYTHON=/path/to/python chooses one; EXTRA=cuda13 (or cuda12) adds the GPU, and
# is remembered until another EXTRA, or an empty one (EXTRA=), is given. Several are separated by spaces: EXTRA="build triton".

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := run
.PHONY: run setup test test-all test-release long chaos soak attack lint docs dist format lock clean

VENV := .venv
BIN := $(VENV)/bin
EXTRA ?= $(shell cat $(VENV)/.extra 2>/dev/null)
EMPTY :=
STAMP := $(VENV)/.ready$(if $(EXTRA),-$(subst $(EMPTY) $(EMPTY),-,$(strip $(EXTRA))))
LOCKS := $(foreach extra,$(or $(EXTRA),all),requirements/$(extra).txt)
TESTERS ?= 4
# A GPU that can be measured: an extra with CuPy, and a driver that shows a card.
GPU = $(and $(filter cuda%,$(EXTRA)),$(shell nvidia-smi -L 2>/dev/null | grep -m 1 '^GPU' || ls /proc/driver/nvidia/gpus 2>/dev/null))
CAMPAIGN ?= examples/campaigns/$(if $(GPU),learn-quickstart,quickstart).yaml
# uv brings certificates of its own, which a proxy that inspects TLS is not among.
export UV_SYSTEM_CERTS ?= 1

run: $(STAMP)
	@$(BIN)/farm run $(CAMPAIGN)

setup: $(STAMP)

# The locked versions, by hash; then the farm itself, editable. uv does it in seconds and comes by hash as well. Where pip
# is configured with a file of certificates (PIP_CERT, or `cert` in pip.conf), uv uses it too.
$(STAMP): pyproject.toml requirements/all.txt requirements/tools.txt $(LOCKS)
	@python=$$(PYTHON="$(PYTHON)" ./requirements/find-python)
	if [ ! -x $(BIN)/python ] || ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'; then
	  echo "setting up $(VENV) with $$($$python --version)" >&2
	  rm -rf $(VENV)
	  $$python -m venv $(VENV)
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.txt
	certs=$$($(BIN)/python -m pip config list | sed -n "s/^[^=]*\.cert='\(.*\)'$$/\1/p")
	if [ -n "$$certs" ] && [ -z "$${SSL_CERT_FILE:-}" ]; then
	  export SSL_CERT_FILE="$${certs%%$$'\n'*}"
	fi
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/tools.txt $(LOCKS)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	rm -f $(VENV)/.ready*
	echo '$(EXTRA)' > $(VENV)/.extra
	touch $@

# Most tests wait for processes of the farm. On two cores, six at a time are no faster than four. TESTERS=0 for one. Files keep their
# order, as those with long tests come first: otherwise files of few and long tests come last, and one core is idle meanwhile.
PYTEST := $(BIN)/python -m pytest --numprocesses $(TESTERS) --dist loadfile --no-loadscope-reorder \
  $(if $(ORDER),--random-order --random-order-bucket=module --random-order-seed=$(ORDER))

test: $(STAMP)
	@$(PYTEST)

test-all: $(STAMP)
	@$(PYTEST) -m 'not release'

test-release: $(STAMP)
	@$(PYTEST) -m release

long: $(STAMP)
	@$(PYTEST) -m long

chaos: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m chaos $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

soak: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m chaos --on-hosts --owners 10 --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

attack: $(STAMP)
	@$(BIN)/python -m benchmarks.attack

lint: $(STAMP)
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/prose.py
	home=$$(mktemp -d)
	trap 'rm -rf "$$home"' EXIT
	FARM_HOME=$$home $(BIN)/farm db upgrade
	FARM_HOME=$$home $(BIN)/farm db check

# The packages of the site come on top of the environment, in the same versions where it has them already.
$(VENV)/.docs: $(STAMP) requirements/docs.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/docs.txt
	touch $@

# Material warns about MkDocs 2, which requirements/docs.txt does not install.
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

dist: $(STAMP)
	@UV=$(BIN)/uv ./requirements/make-dist dist

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Resolves pyproject.toml anew; pins stay as they are unless UPGRADE=--upgrade. Universal: one lock for 3.11 and 3.12.
lock: $(STAMP)
	@compile="$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header $(UPGRADE)"
	all="--extra embedded --extra trainer --extra web --extra otel --extra dev"
	$$compile pyproject.toml $$all -o requirements/all.txt
	printf 'uv\nhatchling>=1.27\neditables\n' | $$compile - -c requirements/all.txt -o requirements/tools.txt
	printf 'cyclonedx-bom>=7\nhatchling\n' | $$compile - -c requirements/all.txt -c requirements/tools.txt -o requirements/dist.txt
	$$compile pyproject.toml --extra otel -c requirements/all.txt -o requirements/worker.txt
	$$compile pyproject.toml --extra trainer --extra otel -c requirements/all.txt -o requirements/trainer.txt
	$$compile pyproject.toml --extra trainer --extra web --extra otel -c requirements/all.txt -o requirements/web.txt
	$$compile pyproject.toml --extra docs -c requirements/all.txt -o requirements/docs.txt
	for extra in cuda12 cuda13 build triton; do
	  $$compile pyproject.toml $$all --extra $$extra -c requirements/all.txt -o requirements/$$extra.txt
	  $$compile pyproject.toml --extra $$extra --extra otel -c requirements/all.txt -o requirements/worker-$$extra.txt
	done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
