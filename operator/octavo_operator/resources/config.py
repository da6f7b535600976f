"""The server's settings: the spec's knobs under the names of octavo-server's flags, in a ConfigMap named by content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment, digest
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.resources.common import child
from octavo_protocol import names

FILE = "server.toml"
MOUNT = "/etc/octavo"
_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10) ** 3,
    **{letter: Decimal(10) ** (3 * (i + 2)) for i, letter in enumerate("MGTPE")},
    **{letter + "i": Decimal(2) ** (10 * (i + 1)) for i, letter in enumerate("KMGTPE")},
}


def quantity(text: str) -> Decimal:
    """Value of a Kubernetes quantity such as `500m`, `4` or `16Gi`."""
    number = text.rstrip("mkMGTPEKi")
    return Decimal(number) * _SUFFIXES[text[len(number) :]]


def threads(spec: Spec) -> int:
    """Threads of a replica on CPU.

    A container without a CPU limit sees all CPUs of its node: without a bound, two replicas would both use them all.
    """
    return spec.engine.threads or max(1, int(quantity(spec.resources.cpu)))


def server_settings(owner: LLMDeployment) -> Json:
    """Settings of octavo-server by flag name. What the spec leaves open is left to the server."""
    spec, engine, scheduler = owner.spec, owner.spec.engine, owner.spec.engine.scheduler
    on_cpu = spec.resources.gpu.count == 0
    slowdown = scheduler.prefill_slowdown_percent
    settings: Json = {
        "model": owner.source.path,
        "served-model-name": list(owner.model_names),
        "host": "0.0.0.0",  # noqa: S104 - inside the pod
        "port": names.PORT_API,
        "admin-host": "0.0.0.0",  # noqa: S104
        "admin-port": names.PORT_ADMIN,
        # Gateways know the clients' keys, and pods take requests from nobody else outside their namespace.
        "tenant-header": True,
        "device": "cpu" if on_cpu else "cuda",
        "tensor-parallel-size": engine.parallelism.tensor if engine.parallelism.tensor > 1 else None,
        "dtype": engine.dtype,
        "quantization": engine.quantization,
        "kv-dtype": engine.kv.dtype,
        "max-model-len": engine.max_model_len,
        "threads": threads(spec) if on_cpu else engine.threads,
        "kv-memory": engine.kv.memory,
        "block-size": engine.kv.block_size,
        "prefix-caching": engine.prefix_caching,
        "cache-policy": engine.cache_policy,
        "profile": engine.profile,
        "max-running-requests": scheduler.max_running_requests,
        "max-batched-tokens": scheduler.max_batched_tokens,
        "max-queued-requests": scheduler.max_queued_requests,
        "chunked-prefill": scheduler.chunked_prefill,
        "prefill-slowdown": None if slowdown is None else slowdown / 100,
        "batching": scheduler.batching,
        "static-wait-ms": scheduler.static_wait_milliseconds,
        "preemption": scheduler.preemption,
        "swap-memory": scheduler.swap_memory,
        "drain-timeout": spec.drain.timeout_seconds,
        "stall-seconds": spec.probes.liveness_stall_seconds,
        "log-format": "json",
    }
    return {name: value for name, value in settings.items() if value is not None}


def config_map(owner: LLMDeployment) -> Json:
    """The immutable ConfigMap of these settings; another content has another name, so no running pod sees it change."""
    settings = server_settings(owner)
    return recorded(owner, f"{owner.name}-config-{digest(settings)}", {FILE: _toml(settings)})


def recorded(owner: LLMDeployment, name: str, data: Mapping[str, str]) -> Json:
    """The ConfigMap of an earlier spec, made again."""
    return {**child(owner, "v1", "ConfigMap", name), "immutable": True, "data": dict(data)}


def _toml(settings: Json) -> str:
    """Strings, numbers, booleans and lists of strings are written alike in JSON and TOML."""
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items())
