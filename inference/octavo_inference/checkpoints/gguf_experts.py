"""Mixtures of experts in GGUF files: what the metadata say of them. Facts are those of llama.cpp."""

from __future__ import annotations

from typing import Any

from octavo_inference.checkpoints.gguf_settings import GgufSettings
from octavo_inference.models.layers import Experts, FeedForward, LayerParts

Fields = dict[str, Any]

SIGMOID = 2
# The architectures that may have experts, for messages.
MIXTURES = (
    "llama", "deepseek2", "dots1", "ernie4_5-moe", "glm4moe", "gpt-oss", "granitehybrid", "granitemoe", "lfm2moe",
    "llama4", "minimax-m2", "nemotron_h_moe", "olmoe", "qwen2moe", "qwen35moe", "qwen3moe", "qwen3next",
)  # fmt: skip


def deepseek_experts(settings: GgufSettings, gating: int = SIGMOID) -> Fields:
    """Experts as DeepSeek has them, by the file's own flags; `gating`: the scores of files that do not state them."""
    sigmoid = settings.get("expert_gating_func", gating) == SIGMOID
    inner = settings.count("expert_feed_forward_length")
    groups = settings.count("expert_group_count", 1)
    return experts(
        settings,
        scoring="sigmoid" if sigmoid else "softmax",
        normalized=settings.flag("expert_weights_norm", default=False),
        scale=settings.short("expert_weights_scale", 1.0),
        groups=groups,
        chosen_groups=settings.count("expert_group_used_count", groups),
        group_score="best_two" if sigmoid else "best",
        shared=inner * settings.count("expert_shared_count", 0, least=0),
    )


def experts(settings: GgufSettings, **changes: Any) -> Fields:
    """`experts` and `parts` of a file with experts: a layer has them if it has their tensors."""
    if not settings.get("expert_count"):
        return {}
    count = settings.count("expert_count")
    inner = settings.get("expert_feed_forward_length") or settings.count("feed_forward_length")
    common: dict[str, Any] = {
        "count": count,
        "chosen": settings.count("expert_used_count"),
        "intermediate": int(inner),
    }

    def kind(layer: int) -> FeedForward:
        return "experts" if f"blk.{layer}.ffn_gate_inp.weight" in settings.file.tensors else "dense"

    parts = tuple(LayerParts(feed_forward=kind(layer)) for layer in range(settings.layers()))
    return {"experts": Experts(**common | changes), "parts": parts}
