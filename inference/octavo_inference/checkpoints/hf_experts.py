"""Mixtures of experts in safetensors checkpoints: what config.json says of them, and their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from octavo_inference.checkpoints.hf_settings import HfSettings
from octavo_inference.checkpoints.hf_tensors import HfTensors
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import Experts, FeedForward, LayerParts
from octavo_inference.models.weights import ExpertWeights, Matrix


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Modules of a layer. `each` is formatted with the expert's number; `stacked`: the tensors of all in one (gpt-oss).

    `transposed`: stacked matrices are [in, out]. `interleaved`: rows of gate and up alternate.
    """

    router: str = "mlp.gate"
    correction: str | None = None
    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    down: str = "mlp.experts.{}.down_proj"
    gate_up: str = "mlp.experts.gate_up_proj"
    stacked_down: str = "mlp.experts.down_proj"
    stacked: bool = False
    transposed: bool = False
    interleaved: bool = False
    shared: str = "mlp.shared_experts.{}_proj"
    shared_input: str | None = None
    shared_router: str | None = None


QWEN = ExpertNames(shared="mlp.shared_expert.{}_proj", shared_router="mlp.shared_expert_gate")
DEEPSEEK = ExpertNames(correction="mlp.gate.e_score_correction_bias")
DEEPSEEK_V2 = ExpertNames()
ERNIE = ExpertNames(correction="mlp.moe_statics.e_score_correction_bias")
MIXTRAL = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{}.w1",
    up="block_sparse_moe.experts.{}.w3",
    down="block_sparse_moe.experts.{}.w2",
)
MINIMAX = replace(MIXTRAL, correction="block_sparse_moe.e_score_correction_bias")
GRANITE = ExpertNames(
    router="block_sparse_moe.router.layer",
    gate_up="block_sparse_moe.input_linear.weight",
    stacked_down="block_sparse_moe.output_linear.weight",
    stacked=True,
    shared="shared_mlp.{}",
    shared_input="shared_mlp.input_linear",
)
LLAMA4 = ExpertNames(
    router="feed_forward.router",
    gate_up="feed_forward.experts.gate_up_proj",
    stacked_down="feed_forward.experts.down_proj",
    stacked=True,
    transposed=True,
    shared="feed_forward.shared_expert.{}_proj",
)
GPT_OSS = ExpertNames(router="mlp.router", stacked=True, transposed=True, interleaved=True)


def experts(settings: HfSettings, **changes: Any) -> Experts:
    """The usual keys of config.json, with `changes`."""
    common: dict[str, Any] = {
        "count": settings.count("num_experts"),
        "chosen": settings.count("num_experts_per_tok"),
        "intermediate": settings.count("moe_intermediate_size", settings.get("intermediate_size")),
    }
    return Experts(**common | changes)


def deepseek_experts(settings: HfSettings, **changes: Any) -> Experts:
    """Sigmoid scores with a correction, from the best groups (DeepSeek V3 and those that follow it)."""
    groups = settings.count("n_group", 1)
    common: dict[str, Any] = {
        "scoring": "sigmoid",
        "normalized": settings.flag("norm_topk_prob", default=True),
        "scale": float(settings.number("routed_scaling_factor", 1.0)),
        "groups": groups,
        "chosen_groups": settings.count("topk_group", groups),
        "group_score": "best_two",
        "shared": settings.count("n_shared_experts", 0, least=0) * settings.count("moe_intermediate_size"),
    }
    return experts(settings, **common | changes)


def deepseek_v2_experts(settings: HfSettings) -> Experts:
    """Softmax scores, of all groups or of the best ones by `topk_method`."""
    settings.refuse("norm_topk_prob")
    settings.refuse("topk_method", "greedy", "group_limited_greedy")
    groups = settings.count("n_group", 1) if settings.get("topk_method") == "group_limited_greedy" else 1
    return experts(
        settings,
        normalized=False,
        scale=float(settings.number("routed_scaling_factor", 1.0)),
        groups=groups,
        chosen_groups=settings.count("topk_group", groups) if groups > 1 else 1,
        shared=settings.count("n_shared_experts", 0, least=0) * settings.count("moe_intermediate_size"),
    )


def layer_parts(settings: HfSettings, is_sparse: Callable[[int], bool]) -> tuple[LayerParts, ...]:
    """Which layers have experts."""

    def kind(layer: int) -> FeedForward:
        return "experts" if is_sparse(layer) else "dense"

    return tuple(LayerParts(feed_forward=kind(layer)) for layer in range(settings.layers()))


def expert_weights(tensors: HfTensors, config: ModelConfig, names: ExpertNames, p: str) -> ExpertWeights:
    """The experts of the layer with the prefix `p`. Raises `ModelError` for tensors that do not fit config.json."""
    experts = config.experts
    assert experts is not None  # noqa: S101 -- a layer of experts in a model without them is a bug of the family's row
    hidden, inner, count = config.hidden, experts.intermediate, experts.count
    biases: dict[str, Any] = {}
    gate: tuple[Matrix, ...] = ()
    if names.stacked or (config.gated and p + names.gate_up in tensors.checkpoint.tensors):
        gate, up, down = tensors.stacked_experts(
            p + names.gate_up,
            p + names.stacked_down,
            (count, inner, hidden),
            transposed=names.transposed,
            interleaved=names.interleaved,
        )
        biases = tensors.stacked_biases(p + names.gate_up, p + names.stacked_down, (count, inner, hidden))
    else:
        if config.gated:
            gate = tuple(tensors.matrix(p + names.gate.format(e) + ".weight", inner, hidden) for e in range(count))
        up = tuple(tensors.matrix(p + names.up.format(e) + ".weight", inner, hidden) for e in range(count))
        down = tuple(tensors.matrix(p + names.down.format(e) + ".weight", hidden, inner) for e in range(count))
    correction = None
    if names.correction is not None and p + names.correction in tensors.checkpoint.tensors:
        correction = tensors.flat(p + names.correction, count)
    return ExpertWeights(
        router=tensors.table(p + names.router + ".weight", count, hidden),
        gate=gate,
        up=up,
        down=down,
        router_bias=tensors.optional(p + names.router + ".bias", count),
        correction=correction,
        **biases,
        **_shared(tensors, config, names, p),
    )


def _shared(tensors: HfTensors, config: ModelConfig, names: ExpertNames, p: str) -> dict[str, Any]:
    experts = config.experts
    if experts is None or not experts.shared:
        return {}
    hidden, inner = config.hidden, experts.shared
    gate: Matrix | None
    up: Matrix
    if names.shared_input is not None:
        gate, up = tensors.matrix(p + names.shared_input + ".weight", 2 * inner, hidden).split(inner, inner)
        down = tensors.matrix(p + names.shared.format("output_linear") + ".weight", hidden, inner)
    else:
        gate = tensors.matrix(p + names.shared.format("gate") + ".weight", inner, hidden) if config.gated else None
        up = tensors.matrix(p + names.shared.format("up") + ".weight", inner, hidden)
        down = tensors.matrix(p + names.shared.format("down") + ".weight", hidden, inner)
    result: dict[str, Any] = {"shared_gate": gate, "shared_up": up, "shared_down": down}
    if experts.shared_gate:
        result["shared_router"] = tensors.table(p + required_name(names.shared_router) + ".weight", 1, hidden)
    return result


def required_name(name: str | None) -> str:
    """A name that the family must have."""
    if name is None:
        raise TypeError("a family without the name of a tensor that it has")
    return name
