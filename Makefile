# Octavo: `make demo` and `make test` do everything; `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo demo-down test check lint types unit integration e2e generate images tools deps lock

PY := .venv/bin/python
# Which cluster `make demo` uses: `local` makes a node of its own, `current` takes the kubectl context at hand.
CLUSTER ?= local
# With CLUSTER=current: a registry that both this machine and the cluster's nodes reach, such as localhost:5001.
REGISTRY ?=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.ready tools ## A real cluster, a model that answers, scales and drains (CLUSTER=current: your kubectl context)
	@PYTHONPATH=tools $(PY) -m demo up --cluster $(CLUSTER) $(if $(REGISTRY),--registry $(REGISTRY))

demo-down: .venv/.ready ## Remove what `make demo` made
	@PYTHONPATH=tools $(PY) -m demo down --cluster $(CLUSTER)

test: check integration e2e ## Everything: check, then integration and end-to-end tests
	@echo "make test: green"

check: lint types unit ## Lint, types and unit tests: under a minute

lint: .venv/.ready
	@$(PY) -m ruff format --check --quiet . || { echo "run: .venv/bin/ruff format ."; exit 1; }
	@$(PY) -m ruff check --quiet .
	@.venv/bin/lint-imports --no-timings >/tmp/octavo-imports.$$$$ || { cat /tmp/octavo-imports.$$$$; exit 1; }; rm -f /tmp/octavo-imports.$$$$
	@PYTHONPATH=operator $(PY) -m octavo_operator.api.generate --check

types: .venv/.ready
	@$(PY) -m mypy protocol inference operator gateway tools/localcluster tools/demo

unit: .venv/.ready
	@$(PY) -m pytest tests/unit -q

integration: .venv/.ready tools ## Tests on a real etcd and kube-apiserver, and on real weights
	@$(PY) -m pytest tests/integration

e2e: .venv/.ready tools ## Tests on a real kubelet and containerd (root; skipped loudly otherwise)
	@$(PY) -m pytest tests/e2e

generate: .venv/.ready ## CRD and API reference from the types
	@$(PY) -m octavo_operator.api.generate

lock: .venv/.ready ## Pin the dependencies anew
	@tools/lock

.venv/.ready: requirements/dev.txt pyproject.toml tools/venv
	@tools/venv && touch $@
