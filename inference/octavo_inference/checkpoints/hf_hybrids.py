"""The families with state layers in safetensors checkpoints: a row each, as in `hf_families`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from octavo_inference.checkpoints import hf_experts as moe
from octavo_inference.checkpoints import hf_families as plain
from octavo_inference.checkpoints import hf_names as names
from octavo_inference.checkpoints.hf_experts import ExpertNames
from octavo_inference.checkpoints.hf_families import Factors, Fields, HfFamily
from octavo_inference.checkpoints.hf_settings import HfSettings
from octavo_inference.checkpoints.hf_states import dt_limit, either, gated_delta, mamba2, mixers
from octavo_inference.common.errors import ModelError
from octavo_inference.models.layers import Experts, FeedForward, LayerParts, Mamba2, ShortConv

# hybrid_override_pattern of Nemotron-H.
_PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_BLOCKS = {
    "linear_attention": LayerParts(attention=False, state=True, feed_forward="none"),
    "mamba": LayerParts(attention=False, state=True, feed_forward="none"),
    "full_attention": LayerParts(feed_forward="none"),
    "attention": LayerParts(feed_forward="none"),
    "mlp": LayerParts(attention=False),
    "moe": LayerParts(attention=False, feed_forward="experts"),
}


def _biases(settings: HfSettings) -> Fields:
    """What the first layer cannot tell: it may have no attention, or no MLP."""
    biased = settings.flag("attention_bias")
    return {"qkv_bias": biased, "output_bias": biased, "mlp_bias": settings.flag("mlp_bias")}


def _granite_hybrid(settings: HfSettings) -> Fields:
    attention = mixers(settings, "layer_types", "layers_block_type")
    sparse = settings.count("num_local_experts", 0, least=0) > 0
    kind: FeedForward = "experts" if sparse else "dense"
    shared = settings.count("shared_intermediate_size")
    rope = settings.get("position_embedding_type") == "rope"
    return {
        **plain.granite(settings),
        **_biases(settings),
        "mlp_bias": False,
        "state": mamba2(settings),
        "parts": either(attention, lambda _: kind),
        "intermediate": shared,
        "rotated": () if rope else (False,) * settings.layers(),
        "experts": moe.experts(settings, scoring="softmax_of_chosen", shared=shared) if sparse else None,
    }


def _bamba(settings: HfSettings) -> Fields:
    indices = settings.get("attn_layer_indices") or []
    attention = [layer in indices for layer in range(settings.layers())]
    if not indices and settings.get("layer_types") is not None:
        attention = mixers(settings, "layer_types")
    return {**_biases(settings), "state": mamba2(settings), "parts": either(attention, lambda _: "dense")}


def _falcon_h1(settings: HfSettings) -> Fields:
    found = mamba2(settings)
    least, most = dt_limit(settings)
    return {
        **_biases(settings),
        "embedding_scale": settings.number("embedding_multiplier", 1.0),
        "logit_scale": settings.number("lm_head_multiplier", 1.0),
        "parts": (LayerParts(state=True),) * settings.layers(),
        "state": Mamba2(
            heads=found.heads,
            head_dim=found.head_dim,
            state=found.state,
            groups=found.groups,
            kernel=found.kernel,
            norm_groups=found.groups if settings.flag("mamba_rms_norm") else 0,
            norm_first=settings.flag("mamba_norm_before_gate", default=True),
            dt_least=least,
            dt_most=most,
        ),
    }


def _falcon_h1_factors(settings: HfSettings) -> Factors:
    """Its multipliers of activations, as factors of the rows before them."""
    attention_in, ssm_in = (settings.number(f"{part}_in_multiplier", 1.0) for part in ("attention", "ssm"))
    attention_out, ssm_out = (settings.number(f"{part}_out_multiplier", 1.0) for part in ("attention", "ssm"))
    key = settings.number("key_multiplier", 1.0)
    gate, down = _numbers(settings, "mlp_multipliers", 2)
    state = mamba2(settings)
    shared = state.groups * state.state
    each = np.repeat(_numbers(settings, "ssm_multipliers", 5), [state.inner, state.inner, shared, shared, state.heads])
    return {
        "q": attention_in, "k": attention_in * key, "v": attention_in, "o": attention_out,
        "k_bias": key, "o_bias": attention_out, "gate": gate, "gate_bias": gate, "down": down, "down_bias": down,
        "state.inputs.0": (each * ssm_in).astype(np.float32), "state.inputs_bias": each.astype(np.float32),
        "state.output": ssm_out, "state.output_bias": ssm_out,
    }  # fmt: skip


def _numbers(settings: HfSettings, key: str, count: int) -> list[float]:
    values = settings.get(key, [1.0] * count)
    if not isinstance(values, list) or len(values) != count or not all(isinstance(v, int | float) for v in values):
        raise ModelError(f"{settings.path}: {key} is {values!r}, expected {count} numbers")
    return [float(value) for value in values]


def _nemotron_h(settings: HfSettings) -> Fields:
    pattern = settings.get("hybrid_override_pattern")
    kinds = settings.get("layers_block_type") or settings.get("layer_types")
    if kinds is None:
        kinds = [_PATTERN.get(letter, letter) for letter in pattern or ""]
    unknown = {str(kind) for kind in kinds} - _BLOCKS.keys()
    if unknown or len(kinds) != settings.layers():
        raise ModelError(
            f"{settings.path}: {len(kinds)} layers of the types {', '.join(sorted(map(str, {*kinds})))} for "
            f"{settings.layers()} layers; known types are {', '.join(_BLOCKS)}"
        )
    activation = HfSettings(settings.path, {"hidden_act": settings.get("mlp_hidden_act", "relu2")}).activation()
    groups = settings.count("n_groups", 8)
    return {
        **_biases(settings),
        "activation": activation,
        "gated": False,
        "rotated": (False,) * settings.layers(),
        "parts": tuple(_BLOCKS[kind] for kind in kinds),
        "experts": _nemotron_experts(settings) if "moe" in kinds else None,
        "state": Mamba2(
            heads=settings.count("mamba_num_heads"),
            head_dim=settings.count("mamba_head_dim"),
            state=settings.count("ssm_state_size"),
            groups=groups,
            kernel=settings.count("conv_kernel", 4),
            norm_groups=groups,
            dt_least=settings.number("time_step_min", 0.001),
        ),
    }


def _nemotron_experts(settings: HfSettings) -> Experts:
    settings.refuse("moe_latent_size")
    return moe.deepseek_experts(settings, shared=settings.count("moe_shared_expert_intermediate_size"))


def _mamba2(settings: HfSettings) -> Fields:
    """A model of state layers alone. Attention's sizes are those of no layer."""
    groups = settings.count("n_groups", 1)
    least, most = dt_limit(settings)
    return {
        "kv_heads": 1,
        "intermediate": 1,
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "activation": "silu",
        "rotated": (False,) * settings.layers(),
        # A state has one size for every length; this bounds the table of rows.
        "max_positions": settings.count("max_position_embeddings", 131_072),
        "parts": (_BLOCKS["mamba"],) * settings.layers(),
        "state": Mamba2(
            heads=settings.count("num_heads"),
            head_dim=settings.count("head_dim"),
            state=settings.count("state_size"),
            groups=groups,
            kernel=settings.count("conv_kernel", 4),
            norm_groups=groups,
            dt_least=least,
            dt_most=most,
        ),
    }


def _lfm2(settings: HfSettings) -> Fields:
    hidden, inner = settings.count("hidden_size"), settings.get("block_ff_dim")
    inner = settings.count("intermediate_size") if inner is None else settings.count("block_ff_dim")
    if settings.flag("block_auto_adjust_ff_dim", default=True):
        step = settings.count("block_multiple_of", 256)
        inner = int(settings.number("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
        inner = -(-inner // step) * step
    return {
        **_short_conv(settings, hidden),
        "parts": either(_lfm2_attention(settings), lambda _: "dense"),
        "intermediate": inner,
    }


def _lfm2_moe(settings: HfSettings) -> Fields:
    dense = settings.count("num_dense_layers", 2, least=0)
    experts = moe.experts(
        settings,
        scoring="sigmoid",
        normalized=settings.flag("norm_topk_prob", default=True),
        scale=float(settings.number("routed_scaling_factor", 1.0)),
    )
    return {
        **_short_conv(settings, settings.count("hidden_size")),
        "parts": either(_lfm2_attention(settings), lambda layer: "dense" if layer < dense else "experts"),
        "experts": experts,
    }


def _short_conv(settings: HfSettings, hidden: int) -> Fields:
    return {
        **_biases(settings),
        "activation": "silu",
        "qk_norm": "head",
        "state": ShortConv(hidden, settings.count("conv_L_cache", 3)),
    }


def _lfm2_attention(settings: HfSettings) -> list[bool]:
    if settings.get("layer_types") is not None:
        return mixers(settings, "layer_types")
    indices = settings.get("full_attn_idxs")
    return [indices is None or layer in indices for layer in range(settings.layers())]


def _qwen3_next(settings: HfSettings) -> Fields:
    return {
        "experts": _gated_experts(settings, normalized=settings.flag("norm_topk_prob", default=True)),
        **_qwen_hybrid(settings, plain.sparse(settings)),
    }


def _qwen3_5(settings: HfSettings) -> Fields:
    return _qwen_hybrid(settings, lambda _: False)


def _qwen3_5_moe(settings: HfSettings) -> Fields:
    found = _gated_experts(settings)
    return {"intermediate": found.shared, "experts": found, **_qwen_hybrid(settings, lambda _: True)}


def _gated_experts(settings: HfSettings, **changes: Any) -> Experts:
    shared = settings.count("shared_expert_intermediate_size")
    return moe.experts(settings, shared=shared, shared_gate=True, **changes)


def _qwen_hybrid(settings: HfSettings, sparse: Callable[[int], bool]) -> Fields:
    settings.refuse("attention_bias")
    interval = settings.count("full_attention_interval", 4)
    attention = [(layer + 1) % interval == 0 for layer in range(settings.layers())]
    if settings.get("layer_types") is not None:
        attention = mixers(settings, "layer_types")
    return {
        **_biases(settings),
        "attention_gate": True,
        "qk_norm": "head",
        "state": gated_delta(settings),
        "parts": either(attention, lambda layer: "experts" if sparse(layer) else "dense"),
    }


_GRANITE_NAMES = names.layer_names(gate_up="shared_mlp.input_linear", down="shared_mlp.output_linear")
_BAMBA_NAMES = names.layer_names(
    post_norm="pre_ff_layernorm", gate="feed_forward.gate_proj", up="feed_forward.up_proj",
    down="feed_forward.down_proj",
)  # fmt: skip
_FINAL = names.ModelNames(final_norm="final_layernorm")
_BLOCK_NAMES = names.layer_names(
    "gate", "gate_up", input_norm="norm", post_norm="norm", q="mixer.q_proj", k="mixer.k_proj", v="mixer.v_proj",
    o="mixer.o_proj", up="mixer.up_proj", down="mixer.down_proj",
)  # fmt: skip
_BACKBONE = names.ModelNames(("backbone.", "model."), embedding="embeddings", final_norm="norm_f")
_LFM2_NAMES = names.layer_names(
    input_norm="operator_norm", post_norm="ffn_norm", o="self_attn.out_proj", q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm", gate="feed_forward.w1", up="feed_forward.w3", down="feed_forward.w2",
)  # fmt: skip
_LFM2_MODEL = names.ModelNames(final_norm="embedding_norm")
_LFM2_EXPERTS = ExpertNames(
    router="feed_forward.gate",
    correction="feed_forward.expert_bias",
    gate="feed_forward.experts.{}.w1",
    up="feed_forward.experts.{}.w3",
    down="feed_forward.experts.{}.w2",
    gate_up="feed_forward.experts.gate_up_proj",
    stacked_down="feed_forward.experts.down_proj",
)
_NEMOTRON_EXPERTS = ExpertNames(
    router="mixer.gate",
    correction="mixer.gate.e_score_correction_bias",
    up="mixer.experts.{}.up_proj",
    down="mixer.experts.{}.down_proj",
    shared="mixer.shared_experts.{}_proj",
)
_QWEN_NEXT = HfFamily(
    "qwen3_next", _qwen3_next, experts=moe.QWEN, rotary_share=0.25, norm_offset=1.0, state="linear_attn."
)
_QWEN3_5 = HfFamily("qwen3_5", _qwen3_5, rotary_share=0.25, norm_offset=1.0, state="linear_attn.")
_QWEN3_5_MOE = HfFamily(
    "qwen3_5_moe", _qwen3_5_moe, experts=moe.QWEN, rotary_share=0.25, norm_offset=1.0, state="linear_attn."
)

HYBRIDS: dict[str, HfFamily] = {
    "BambaForCausalLM": HfFamily("bamba", _bamba, _BAMBA_NAMES, _FINAL, rotary_share=0.5, state="mamba."),
    "FalconH1ForCausalLM": HfFamily(
        "falcon_h1", _falcon_h1, _BAMBA_NAMES, _FINAL, state="mamba.", factors=_falcon_h1_factors
    ),
    "GraniteMoeHybridForCausalLM": HfFamily(
        "granitehybrid", _granite_hybrid, _GRANITE_NAMES, experts=moe.GRANITE, state="mamba."
    ),
    "Lfm2ForCausalLM": HfFamily("lfm2", _lfm2, _LFM2_NAMES, _LFM2_MODEL, theta=1_000_000.0, state="conv."),
    "Lfm2MoeForCausalLM": HfFamily(
        "lfm2moe", _lfm2_moe, _LFM2_NAMES, _LFM2_MODEL, experts=_LFM2_EXPERTS, theta=1_000_000.0, state="conv."
    ),
    "Mamba2ForCausalLM": HfFamily("mamba2", _mamba2, _BLOCK_NAMES, _BACKBONE, state="mixer."),
    "NemotronHForCausalLM": HfFamily(
        "nemotron_h", _nemotron_h, _BLOCK_NAMES, _BACKBONE, experts=_NEMOTRON_EXPERTS, state="mixer."
    ),
    "Qwen3NextForCausalLM": _QWEN_NEXT,
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5,
    "Qwen3_5MoeForCausalLM": _QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5_MOE,
}
