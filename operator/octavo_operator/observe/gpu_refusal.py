"""Why a replica does not fit its GPUs, with the figures and the ways out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from octavo_operator.api.v1alpha1 import Gpu, Spec
from octavo_operator.observe.gpu_fit import Card
from octavo_operator.observe.gpu_memory import GpuEstimate, estimate, estimate_of
from octavo_operator.resources.config import mib
from octavo_protocol.engine_settings import EngineSettings
from octavo_protocol.model import ModelReport

# The resource of whole GPUs; others are slices of them.
_WHOLE = "nvidia.com/gpu"


def fitted(spec: Spec, found: ModelReport, cards: Sequence[Card] | None) -> GpuEstimate | None:
    """The estimate for the smallest of the GPUs that a pod may get on which a replica fits, else for the largest.

    None where only the server can tell, as with no such node yet, or a node without the label of its GPUs' memory.
    """
    if not cards or not all(card.memory for card in cards):
        return estimate(spec, found, None)
    known = [one for one in (estimate(spec, found, card) for card in cards) if one is not None]
    return next((one for one in known if _fits(one, spec.engine.settings)), known[-1] if known else None)


def gpu_refusal(spec: Spec, found: ModelReport, expected: GpuEstimate) -> str:
    """The reason with its figures; empty when a replica fits, or the GPU is unknown."""
    settings, gpu = spec.engine.settings, spec.resources.gpu
    if settings.kv_memory and settings.max_model_len and expected.sequence > expected.kv:
        return (
            f"spec.engine.maxModelLen: the KV of one sequence of {expected.length} tokens takes "
            f"{mib(expected.sequence)}{expected.of_states} on each GPU, and the pool has {mib(expected.kv)} "
            f"(spec.engine.kv.memory); set spec.engine.kv.memory to {mib(max(expected.sequence, expected.least))} or "
            f"more{_or_shorter(expected.kv_tokens)}"
        )
    if settings.kv_memory and expected.kv < expected.least:
        return (
            f"spec.engine.kv.memory: a server needs two blocks of {expected.block_size} tokens, {expected.least} bytes "
            f"on each GPU, and the pool has {settings.kv_memory}; set at least {mib(expected.least)}"
        )
    card = expected.card
    if card is None or _fits(expected, settings):
        return ""
    pool, use = _needed(expected, settings)
    size = "" if settings.kv_memory else "at least "
    parts = [
        f"the weights take {mib(expected.weights)}{_format(found)}",
        f"the KV pool {size}{mib(pool)}{use}",
        *([f"{settings.max_loaded_adapters} adapters {mib(expected.adapters)}"] if expected.adapters else []),
        f"working memory {mib(expected.working)}",
        *([f"CUDA graphs {mib(expected.graphs)}"] if expected.graphs else []),
        f"the CUDA context and a reserve {mib(expected.reserve)}",
    ]
    return (
        f"spec.resources.gpu: {_name(gpu, card)} with {mib(card.memory, up=False)} is too small: "
        f"{', '.join(parts)}, {mib(expected.total - expected.kv + pool)} in all on each GPU; "
        f"{', or '.join(_ways(gpu, settings, found, expected, card))}"
    )


def _name(gpu: Gpu, card: Card) -> str:
    """The product; the label of a slice's node has the whole GPU's."""
    return (card.product or "a GPU") if gpu.resource_name == _WHOLE else gpu.resource_name


def _fits(expected: GpuEstimate, settings: EngineSettings) -> bool:
    return _needed(expected, settings)[0] <= expected.room


def _needed(expected: GpuEstimate, settings: EngineSettings) -> tuple[int, str]:
    """Bytes that the pool has to have, and why."""
    if settings.kv_memory:
        return expected.kv, ""
    if settings.max_model_len:
        return max(expected.sequence, expected.least), f" (one sequence of {expected.length} tokens)"
    return expected.least, ""


def _ways(gpu: Gpu, settings: EngineSettings, found: ModelReport, expected: GpuEstimate, card: Card) -> Iterator[str]:
    pool, whole = _needed(expected, settings)[0], gpu.resource_name == _WHOLE
    # The label that minMemory is compared with is the memory of a whole GPU.
    field = "spec.resources.gpu.minMemory" if whole else "spec.resources.gpu.resourceName"
    yield f"use GPUs with at least {mib(_card_for(settings, found, expected, pool))} ({field})"
    floats = settings.quantization == "auto" and settings.dtype != "float32" and not found.quantized
    if floats and _would_fit(replace(settings, quantization="fp8"), found, card):
        yield "set spec.engine.quantization to fp8"
    # Slices of GPUs have no connection between them.
    if whole and (ranks := _ranks(settings, found, card)):
        yield f"set spec.engine.parallelism.tensor and spec.resources.gpu.count to {ranks}"
    if settings.max_running_requests is None and _would_fit(replace(settings, profile="latency"), found, card):
        yield "set spec.engine.profile to latency"
    if expected.adapters:
        yield "lower spec.engine.adapters.maxLoaded or maxRank"
    room = expected.room // expected.block * expected.block
    sequence = expected.sequence if settings.max_model_len else 0
    if settings.kv_memory and room >= max(expected.least, sequence):
        yield f"lower spec.engine.kv.memory to {mib(room, up=False)}"
    elif settings.max_model_len and room >= expected.least:
        tokens = expected.tokens_in(room)
        memory = f" and spec.engine.kv.memory to {mib(room, up=False)}" if settings.kv_memory else ""
        yield f"lower spec.engine.maxModelLen to {tokens}{memory}"


def _would_fit(settings: EngineSettings, found: ModelReport, card: Card) -> bool:
    expected = estimate_of(settings, found, card)
    return expected is not None and _fits(expected, settings)


def _ranks(settings: EngineSettings, found: ModelReport, card: Card) -> int | None:
    """The fewest GPUs of a node on which the model would fit."""
    shares = found.gpu.shares if found.gpu else ()
    more = [share.ranks for share in shares if settings.tensor_parallel_size < share.ranks <= card.count]
    return next((n for n in more if _would_fit(replace(settings, tensor_parallel_size=n), found, card)), None)


def _card_for(settings: EngineSettings, found: ModelReport, expected: GpuEstimate, pool: int) -> int:
    """Bytes of a GPU that would do. A larger GPU has a larger reserve, so the first answer may not suffice."""
    size = expected.total - expected.kv + pool
    for _ in range(8):
        again = estimate_of(settings, found, Card("", size, 1))
        if again is None or pool <= again.room:
            break
        size += pool - again.room
    return size


def _format(found: ModelReport) -> str:
    return f" ({found.format})" if found.format else ""


def _or_shorter(tokens: int) -> str:
    return f", or lower spec.engine.maxModelLen to {tokens}" if tokens else ""
