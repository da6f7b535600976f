"""Whether the model that was found suits the spec: its memory, and what the engine would refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_operator.api.resource import SpecRefusal
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.observe import memory_estimate
from octavo_operator.observe.gpu_fit import Card
from octavo_operator.observe.gpu_memory import GpuEstimate
from octavo_operator.observe.gpu_refusal import fitted, gpu_refusal
from octavo_operator.observe.memory_estimate import Estimate
from octavo_protocol.model import ModelReport, no_effect


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The estimated memory of one replica: on a CPU or on its GPUs; None where only the server can tell."""

    memory: Estimate | None = None
    gpu: GpuEstimate | None = None

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that the KV pool holds."""
        known = self.gpu or self.memory
        return known.kv_tokens if known else None


def expected(spec: Spec, memory: str, found: ModelReport, cards: Sequence[Card] | None) -> MemoryFit:
    """The memory of a replica with this memory limit, on a node with one of these GPUs if it needs any."""
    if spec.resources.gpu.count:
        return MemoryFit(gpu=fitted(spec, found, cards))
    return MemoryFit(memory=memory_estimate.estimate(spec, memory, found))


def refusal(spec: Spec, found: ModelReport, fit: MemoryFit) -> SpecRefusal | None:
    """Why no replica could serve this model, in the server's words where it would refuse; None if it could."""
    # A server of another image may support other settings, and keep the weights in other layouts.
    if spec.engine.image is not None:
        return None
    if refused := _setting(spec, found):
        return refused
    text = ""
    if fit.gpu:
        text = gpu_refusal(spec, found, fit.gpu)
    elif fit.memory:
        text = memory_estimate.refusal(spec, fit.memory)
    return SpecRefusal("ModelTooLarge", text) if text else None


def _setting(spec: Spec, found: ModelReport) -> SpecRefusal | None:
    """The setting that the model rules out."""
    settings = spec.engine.settings
    if settings.quantization != "auto" and found.quantized:
        return SpecRefusal(
            "QuantizationConflict", f"spec.engine.quantization: {no_effect(settings.quantization)}{_is(found)}"
        )
    if settings.speculation != "none" and (found.state_bytes or found.whole_prompts):
        why = "state layers, whose states cannot go back to before a wrong guess"
        return SpecRefusal(
            "SpeculationUnsupported",
            f"spec.engine.speculation.method: {found.architecture} "
            f"{f'has {why}' if found.state_bytes else 'is an encoder and generates no text'}; leave speculation out",
        )
    if settings.max_loaded_adapters and found.architecture and not (found.kv_elements_per_token or found.state_bytes):
        return SpecRefusal(
            "AdaptersUnsupported",
            f"spec.model.adapters: transformers computes {found.architecture}, and takes no adapters here; leave "
            "adapters and spec.engine.adapters.maxLoaded out",
        )
    if spec.resources.gpu.count and found.whole_prompts:
        return SpecRefusal(
            "GpuUnsupported",
            f"spec.resources.gpu: {found.architecture} is an encoder, and only CPUs compute attention in both "
            "directions; leave spec.resources.gpu out",
        )
    most, longest = settings.max_batched_tokens, settings.max_model_len or found.max_length
    if found.whole_prompts and most is not None and most < longest:
        return SpecRefusal(
            "StepTooSmall",
            f"spec.engine.scheduler.maxBatchedTokens: {most} is less than the longest prompt of {longest} tokens, and "
            f"an encoder ({found.architecture}) computes a prompt in one step; raise it, or lower "
            "spec.engine.maxModelLen",
        )
    if spec.resources.gpu.count and (sizes := _ranks(found)) and settings.tensor_parallel_size not in sizes:
        return SpecRefusal(
            "ParallelismUnsupported",
            f"spec.engine.parallelism.tensor: {settings.tensor_parallel_size} GPUs cannot share this model"
            f"{_is(found)}: each gets whole heads, and whole groups of quantized columns, which act-order mixes; use "
            f"{_listed(sizes)}",
        )
    return None


def _ranks(found: ModelReport) -> list[int]:
    return [share.ranks for share in found.gpu.shares] if found.gpu else []


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def _is(found: ModelReport) -> str:
    return f" (its format is {found.format})" if found.format else ""
