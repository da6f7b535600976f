"""Builders of resources, pods and reports for the operator's tests."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from octavo_operator.api.resource import LLMDeployment, parse
from octavo_operator.observe.pods import Pod
from octavo_operator.resources.common import Installation
from octavo_protocol.load import LoadReport

Json = dict[str, Any]


def merged(base: Json, changes: Json) -> Json:
    """`base` with `changes` laid over it, block by block."""
    out = copy.deepcopy(base)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(out.get(name), dict)
        out[name] = merged(out[name], value) if both else value
    return out


@pytest.fixture
def make_owner() -> Callable[..., LLMDeployment]:
    def make(
        spec: Json | None = None, *, status: Json | None = None, uid: str = "u1", generation: int = 1
    ) -> LLMDeployment:
        base = {"model": {"uri": "oci://registry.local/models/tiny:1"}, "resources": {"gpu": {"count": 0}}}
        meta = {"name": "tiny", "namespace": "models", "uid": uid, "generation": generation}
        return parse({"metadata": meta, "spec": merged(base, spec or {}), "status": status or {}})

    return make


@pytest.fixture
def installation() -> Installation:
    return Installation("octavo-server:1", "octavo-server-cpu:1", "octavo-system")


@pytest.fixture
def make_pod(make_owner: Callable[..., LLMDeployment]) -> Callable[..., Pod]:
    def make(name: str, **changes: Any) -> Pod:
        values: Json = {
            "name": name,
            "revision": make_owner().revision,
            "config": "",
            "created": 1000.0,
            "ip": "10.0.0.1",
            "ready": True,
            "loaded": True,
            "scheduled": True,
        }
        return Pod(**{**values, **changes})

    return make


@pytest.fixture
def make_report() -> Callable[..., LoadReport]:
    def make(**changes: Any) -> LoadReport:
        values: Json = {
            "sequence": 1,
            "start_time": 1010.0,
            "model": "tiny",
            "block_size": 32,
            "blocks_total": 100,
            "blocks_pinned": 0,
            "blocks_cached": 0,
            "running": 0,
            "waiting": 0,
            "waiting_tokens": 0,
            "uncached_prompt_tokens": 0,
            "oldest_wait": 0.0,
            "preemptions": 0,
            "requests": 0,
            "prompt_tokens": 0,
            "generation_tokens": 0,
            "prefix_hit_tokens": 0,
            "max_running": 64,
            "max_batched_tokens": 512,
            "max_waiting": 1024,
            "ready": True,
            "draining": False,
            "cold_start": 5.0,
        }
        return LoadReport(**{**values, **changes})

    return make
