"""The families of decoders in safetensors checkpoints: a row each, of flags and names.

A row says what differs from Llama: more fields of `ModelConfig`, names of tensors, the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints import hf_experts as moe
from octavo_inference.checkpoints import hf_names as names
from octavo_inference.checkpoints.hf_experts import ExpertNames
from octavo_inference.checkpoints.hf_latent import latent_fields
from octavo_inference.checkpoints.hf_names import LayerNames, ModelNames
from octavo_inference.checkpoints.hf_settings import HfSettings
from octavo_inference.checkpoints.hf_windows import alternating, chunks, kinds_of, rotated_layers, windows
from octavo_inference.common.errors import UnsupportedModelError
from octavo_inference.models.layers import Experts, LayerParts
from octavo_inference.models.task import Task

Fields = dict[str, Any]
Factors = dict[str, float | NDArray[np.float32]]
"""By the field of `LayerWeights`, `state.output` for one of its state layer: a factor of its rows, or of each."""
Stacking = Literal["parts", "heads", "groups"]


def _same(_: HfSettings) -> Fields:
    return {}


def _zero(_: HfSettings) -> int:
    return 0


def _opt_offset(_: HfSettings) -> int:
    return 2  # rows that no token uses


@dataclass(frozen=True, slots=True)
class HfFamily:
    """`name`: the architecture in `ModelConfig`. `fields(settings)`: what differs from a plain decoder.

    `theta`: the default of rope_theta; `rotary_share` that of partial_rotary_factor, None where all of a head rotates.
    `adjacent`: rotary pairs are neighbours, (2i, 2i + 1). `stacking`: rows of a stacked qkv: all of q, k and v; by
    head; by key-value head, its queries first. `norm_offset` is added to norm weights. `transposed`: matrices are
    stored [in, out]. `state`: how names of a state layer's tensors begin. `factors`: of weights, where activations are
    multiplied. `task`: that of `ModelConfig`. `first_position`: the row of learned positions for the first token.
    """

    name: str
    fields: Callable[[HfSettings], Fields] = _same
    layer: LayerNames = field(default_factory=names.layer_names)
    model: ModelNames = names.PLAIN_MODEL
    experts: ExpertNames | None = None
    theta: float = 10_000.0
    rotary_share: float | None = None
    adjacent: bool = False
    stacking: Stacking = "parts"
    norm_offset: float = 0.0
    transposed: bool = False
    state: str = ""
    factors: Callable[[HfSettings], Factors] | None = None
    task: Task = "generate"
    first_position: Callable[[HfSettings], int] = _zero


def _gemma(settings: HfSettings) -> Fields:
    return {
        "activation": "gelu_tanh" if settings.get("hidden_activation") is None else settings.activation(),
        "embedding_scale": settings.count("hidden_size") ** 0.5,
    }


def _gemma2(settings: HfSettings) -> Fields:
    return {
        "embedding_scale": settings.count("hidden_size") ** 0.5,
        "windows": windows(settings, alternating(settings, 2)),
        "query_scale": settings.number("query_pre_attn_scalar", 256) ** -0.5,
        "attention_softcap": settings.positive("attn_logit_softcapping", 50.0),
        "logit_softcap": settings.positive("final_logit_softcapping", 30.0),
        "output_norms": True,
    }


def _gemma3(settings: HfSettings) -> Fields:
    return {
        "embedding_scale": settings.count("hidden_size") ** 0.5,
        "windows": windows(settings, alternating(settings, 6)),
        "query_scale": settings.number("query_pre_attn_scalar", 256) ** -0.5,
        "attention_softcap": settings.positive("attn_logit_softcapping"),
        "logit_softcap": settings.positive("final_logit_softcapping"),
        "qk_norm": "head",
        "output_norms": True,
    }


def _qwen2(settings: HfSettings) -> Fields:
    if not settings.flag("use_sliding_window"):
        return {}
    first = settings.count("max_window_layers", 28, least=0)
    return {"windows": windows(settings, [layer >= first for layer in range(settings.layers())])}


def _qwen3(settings: HfSettings) -> Fields:
    return {"qk_norm": "head", **_qwen2(settings)}


def _windowed(settings: HfSettings) -> Fields:
    return {"windows": windows(settings, [True] * settings.layers())}


def _smollm3(settings: HfSettings) -> Fields:
    rotated = rotated_layers(settings)
    local = windows(settings, [not each for each in rotated]) if settings.flag("use_sliding_window") else ()
    return {"rotated": rotated, "windows": local}


def granite(settings: HfSettings) -> Fields:
    """Granite's multipliers."""
    return {
        "query_scale": settings.positive("attention_multiplier"),
        "embedding_scale": settings.number("embedding_multiplier", 1.0),
        "residual_scale": settings.number("residual_multiplier", 1.0),
        "logit_scale": 1 / (settings.positive("logits_scaling", 1.0) or 1.0),
    }


def _minicpm(settings: HfSettings) -> Fields:
    depth = settings.number("scale_depth", 1.0) / settings.layers() ** 0.5
    width = settings.count("hidden_size") / settings.number("dim_model_base", settings.count("hidden_size"))
    return {"embedding_scale": settings.number("scale_emb", 1.0), "residual_scale": depth, "logit_scale": 1 / width}


def _olmo(settings: HfSettings) -> Fields:
    return {"layer_norm": True, "norm_eps": 1e-5, "qkv_clip": settings.positive("clip_qkv")}


def _olmo2(settings: HfSettings) -> Fields:
    return {
        "input_norms": False,
        "output_norms": True,
        "qk_norm": "whole",
        "windows": windows(settings, alternating(settings, 4)),
        "qkv_clip": settings.positive("clip_qkv"),
    }


def _exaone4(settings: HfSettings) -> Fields:
    windowed = settings.get("sliding_window") is not None
    local = windows(settings, alternating(settings, 4)) if windowed else ()
    rotated = tuple(each is not None for each in local)
    return {"input_norms": False, "output_norms": True, "qk_norm": "head", "windows": local, "rotated": rotated}


def _cohere(settings: HfSettings) -> Fields:
    return {
        "layer_norm": True,
        "parallel": True,
        "shared_norm": True,
        "logit_scale": settings.number("logit_scale", 0.0625),
        "qk_norm": "head" if settings.flag("use_qk_norm") else None,
    }


def _cohere2(settings: HfSettings) -> Fields:
    local = windows(settings, alternating(settings, 4))
    return {**_cohere(settings), "windows": local, "rotated": tuple(each is not None for each in local)}


def _glm4(_: HfSettings) -> Fields:
    return {"output_norms": True}


def _starcoder2(settings: HfSettings) -> Fields:
    return {"layer_norm": True, "gated": False, **_windowed(settings)}


def _stablelm(settings: HfSettings) -> Fields:
    parallel = settings.flag("use_parallel_residual")
    qk_norm = "head" if settings.flag("qk_layernorm") else None
    return {"layer_norm": True, "parallel": parallel, "shared_norm": parallel, "qk_norm": qk_norm}


def _phi(settings: HfSettings) -> Fields:
    settings.refuse("qk_layernorm")
    return {"layer_norm": True, "parallel": True, "shared_norm": True, "gated": False, "head_bias": True}


def _nemotron(_: HfSettings) -> Fields:
    return {"layer_norm": True, "gated": False}


def _ungated(_: HfSettings) -> Fields:
    return {"gated": False}


def _apertus(_: HfSettings) -> Fields:
    return {"gated": False, "qk_norm": "head"}


def _hunyuan(_: HfSettings) -> Fields:
    return {"qk_norm": "head", "qk_norm_rotated": True}


def _equal_heads(settings: HfSettings) -> Fields:
    """As many key-value heads as heads, whatever else config.json has."""
    return {"kv_heads": settings.count("num_attention_heads")}


def _wide(settings: HfSettings, key: str) -> int:
    """Inner elements of the MLP: four times the hidden size unless `key` is set."""
    return HfSettings(settings.path, {key: settings.data.get(key)}).count(key, 4 * settings.count("hidden_size"))


def _neox(settings: HfSettings) -> Fields:
    return {
        "layer_norm": True,
        "gated": False,
        "parallel": settings.flag("use_parallel_residual", default=True),
        **_equal_heads(settings),
    }


def _gptj(settings: HfSettings) -> Fields:
    return {
        "layer_norm": True, "gated": False, "parallel": True, "shared_norm": True, "head_bias": True,
        "rotary_dim": settings.count("rotary_dim"), "intermediate": _wide(settings, "n_inner"),
        **_equal_heads(settings),
    }  # fmt: skip


def _learned(settings: HfSettings) -> Fields:
    """GPT-2: learned positions instead of a rotation."""
    settings.refuse("scale_attn_by_inverse_layer_idx")
    settings.refuse("add_cross_attention")
    return {
        "layer_norm": True,
        "gated": False,
        "rotated": (False,) * settings.layers(),
        "learned_positions": settings.count("max_position_embeddings"),
        "intermediate": _wide(settings, "n_inner"),
        **_equal_heads(settings),
    }


def _bigcode(settings: HfSettings) -> Fields:
    heads = settings.count("num_attention_heads")
    return {**_learned(settings), "kv_heads": 1 if settings.flag("multi_query", default=True) else heads}


def _opt(settings: HfSettings) -> Fields:
    if not settings.flag("do_layer_norm_before", default=True):
        raise UnsupportedModelError(f"{settings.path}: do_layer_norm_before false is not supported")
    settings.refuse("_remove_final_layer_norm")
    settings.refuse("word_embed_proj_dim", settings.count("hidden_size"))
    return {**_learned(settings), "intermediate": settings.count("ffn_dim")}


def _bloom(settings: HfSettings) -> Fields:
    settings.refuse("apply_residual_connection_post_layernorm")
    return {
        "layer_norm": True, "gated": False, "activation": "gelu_tanh", "alibi": 1.0, "embedding_norm": True,
        "rotated": (False,) * settings.layers(), "intermediate": 4 * settings.count("hidden_size"),
        "max_positions": settings.count("max_position_embeddings", 2048), **_equal_heads(settings),
    }  # fmt: skip


def _mpt(settings: HfSettings) -> Fields:
    attention = HfSettings(settings.path, settings.get("attn_config") or {})
    for key in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        attention.refuse(key)
    attention.refuse("alibi_bias_max", 8)
    attention.refuse("attn_type", "multihead_attention")
    if not attention.flag("alibi", default=True):
        raise UnsupportedModelError(f"{settings.path}: attn_config.alibi false is not supported")
    settings.refuse("logit_scale")
    return {
        "layer_norm": True, "gated": False, "activation": "gelu", "alibi": 1.0,
        "rotated": (False,) * settings.layers(), "query_scale": attention.positive("softmax_scale"),
        "intermediate": settings.count("expansion_ratio", 4) * settings.count("hidden_size"),
        "qkv_clip": attention.positive("clip_qkv"), **_equal_heads(settings),
    }  # fmt: skip


def _falcon(settings: HfSettings) -> Fields:
    heads, new = settings.count("num_attention_heads"), settings.flag("new_decoder_architecture")
    shared = settings.get("num_ln_in_parallel_attn", 2 if new else 1) != 2
    parallel = new or settings.flag("parallel_attn", default=True)
    alibi = settings.flag("alibi")
    queries_share = settings.flag("multi_query", default=True)
    return {
        "layer_norm": True,
        "gated": False,
        "parallel": parallel,
        "shared_norm": parallel and shared,
        "kv_heads": settings.data.get("num_kv_heads") or heads if new else 1 if queries_share else heads,
        "intermediate": _wide(settings, "ffn_hidden_size"),
        # Falcon adds the bias before it scales the scores.
        "alibi": (settings.count("hidden_size") / heads) ** -0.5 if alibi else 0.0,
        "rotated": (False,) * settings.layers() if alibi else (),
        "activation": "gelu" if settings.get("hidden_act") is None else settings.activation(),
        "max_positions": settings.count("max_position_embeddings", 2048),
    }


def _deci(settings: HfSettings) -> Fields:
    """Llama-Nemotron: each layer has its own number of key-value heads and inner elements, or leaves parts out."""
    heads, hidden = settings.count("num_attention_heads"), settings.count("hidden_size")
    parts = []
    for block in settings.per_layer("block_configs") or []:
        attention = HfSettings(settings.path, block.get("attention") or {})
        mlp = HfSettings(settings.path, block.get("ffn") or {})
        attention.refuse("replace_with_linear")
        mlp.refuse("replace_with_linear")
        inner = None if mlp.flag("no_op") else int(2 * mlp.number("ffn_mult", 4.0) * hidden / 3)
        no_op = attention.flag("no_op")
        kv_heads = None if no_op else heads // attention.count("n_heads_in_group")
        parts.append(
            LayerParts(
                attention=not no_op,
                feed_forward="none" if inner is None else "dense",
                kv_heads=kv_heads,
                intermediate=None if inner is None else -(-inner // 256) * 256,
            )
        )
    most = max((part.intermediate or 0 for part in parts), default=0)
    keys = max((part.kv_heads or 0 for part in parts), default=0)
    return {"parts": tuple(parts), "intermediate": most, "kv_heads": keys}


def _mixtral(settings: HfSettings) -> Fields:
    return {**_windowed(settings), **_all_experts(settings, scoring="softmax")}


def _phimoe(settings: HfSettings) -> Fields:
    near = 2 * settings.number("router_jitter_noise", 0.01)
    return {
        **_windowed(settings),
        **_all_experts(settings, scoring="softmax_of_near", near=near, normalized=False),
        "layer_norm": True,
        "head_bias": settings.flag("lm_head_bias"),
    }


def _all_experts(settings: HfSettings, **changes: Any) -> Fields:
    return {"experts": moe.experts(settings, **changes), "parts": moe.layer_parts(settings, lambda _: True)}


def _qwen_moe(settings: HfSettings) -> Fields:
    normalized = settings.flag("norm_topk_prob")
    return {
        "experts": moe.experts(settings, normalized=normalized),
        "parts": moe.layer_parts(settings, sparse(settings)),
    }


def sparse(settings: HfSettings) -> Callable[[int], bool]:
    """Which layers of a Qwen have experts."""
    step, dense = settings.count("decoder_sparse_step", 1), settings.get("mlp_only_layers", [])
    return lambda layer: layer not in dense and (layer + 1) % step == 0


def _qwen2_moe(settings: HfSettings) -> Fields:
    found = moe.experts(
        settings,
        normalized=settings.flag("norm_topk_prob"),
        shared=settings.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return {**_qwen2(settings), **_qwen_moe(settings), "experts": found}


def _qwen3_moe(settings: HfSettings) -> Fields:
    return {**_qwen3(settings), **_qwen_moe(settings)}


def _olmoe(settings: HfSettings) -> Fields:
    normalized = settings.flag("norm_topk_prob")
    return {
        "qk_norm": "whole",
        "qkv_clip": settings.positive("clip_qkv"),
        **_all_experts(settings, normalized=normalized),
    }


def _granite_moe(settings: HfSettings) -> Fields:
    shared = settings.count("shared_intermediate_size", 0, least=0)
    return {**granite(settings), **_all_experts(settings, scoring="softmax_of_chosen", shared=shared)}


def _glm4_moe(settings: HfSettings) -> Fields:
    first = settings.count("first_k_dense_replace", 1, least=0)
    return {
        "qk_norm": "head" if settings.flag("use_qk_norm") else None,
        "experts": moe.deepseek_experts(settings),
        "parts": moe.layer_parts(settings, lambda layer: layer >= first),
    }


def _dots1(settings: HfSettings) -> Fields:
    local = kinds_of(settings) or ["full_attention"] * settings.layers()
    return {
        **_glm4_moe(settings),
        "qk_norm": "head",
        "windows": windows(settings, [kind == "sliding_attention" for kind in local]),
    }


def _ernie_moe(settings: HfSettings) -> Fields:
    start, step = settings.count("moe_layer_start_index", 1, least=0), settings.count("moe_layer_interval", 1)
    end = settings.get("moe_layer_end_index", -1)
    last = settings.layers() - 1 if end == -1 else end
    shared = settings.count("n_shared_experts", 0, least=0) * settings.count("moe_intermediate_size")
    return {
        "experts": moe.experts(settings, shared=shared),
        "parts": moe.layer_parts(settings, lambda layer: (layer + 1) % step == 0 and start <= layer <= last),
    }


def _minimax_m2(settings: HfSettings) -> Fields:
    return {"qk_norm": "whole", **_all_experts(settings, scoring="sigmoid")}


def _llama4(settings: HfSettings) -> Fields:
    rotated = rotated_layers(settings)
    step = settings.count("interleave_moe_layer_step", 1)
    sparse = settings.get("moe_layers") or range(step - 1, settings.layers(), step)
    inner = settings.count("intermediate_size")
    tuned = settings.flag("attn_temperature_tuning", default=True)
    return {
        "rotated": rotated,
        "chunks": chunks(settings, rotated),
        "qk_norm": "head" if settings.flag("use_qk_norm", default=True) else None,
        "qk_norm_rotated": settings.flag("use_qk_norm", default=True),
        "query_temperature": (settings.number("floor_scale", 8192), settings.number("attn_scale", 0.1))
        if tuned
        else None,
        "intermediate": settings.count("intermediate_size_mlp", inner),
        "experts": moe.experts(
            settings, intermediate=inner, scoring="sigmoid", normalized=False, input_scaled=True, shared=inner
        ),
        "parts": moe.layer_parts(settings, lambda layer: layer in sparse),
    }


def _gpt_oss(settings: HfSettings) -> Fields:
    return {
        "sinks": True,
        "windows": windows(settings, alternating(settings, 2)),
        **_all_experts(settings, scoring="softmax_of_chosen", clamp=settings.number("swiglu_limit", 7.0)),
    }


def _deepseek_v2(settings: HfSettings) -> Fields:
    return _latent(settings, _sparse_from(settings, 0), moe.deepseek_v2_experts)


def _deepseek_v3(settings: HfSettings) -> Fields:
    settings.refuse("scoring_func", "sigmoid")
    return _latent(settings, _sparse_from(settings, 3), moe.deepseek_experts)


def _glm4_moe_lite(settings: HfSettings) -> Fields:
    kinds = settings.per_layer("mlp_layer_types")
    sparse = [kind == "sparse" for kind in kinds] if kinds else _sparse_from(settings, 1)
    return _latent(settings, sparse, moe.deepseek_experts)


def _sparse_from(settings: HfSettings, default: int) -> list[bool]:
    settings.refuse("moe_layer_freq", 1)
    first = settings.count("first_k_dense_replace", default, least=0)
    return [layer >= first for layer in range(settings.layers())]


def _latent(settings: HfSettings, sparse: list[bool], experts: Callable[[HfSettings], Experts]) -> Fields:
    """Latent attention, and experts in the layers that are `sparse`."""
    if not any(sparse):
        return latent_fields(settings)
    parts = moe.layer_parts(settings, lambda layer: sparse[layer])
    return {**latent_fields(settings), "experts": experts(settings), "parts": parts}


def _minicpm3(settings: HfSettings) -> Fields:
    return {**_minicpm(settings), **latent_fields(settings)}


_LLAMA4 = HfFamily("llama4", _llama4, names.LLAMA4, experts=moe.LLAMA4, theta=500_000.0, adjacent=True)
_GEMMA3 = HfFamily("gemma3", _gemma3, names.GEMMA2, theta=1_000_000.0, norm_offset=1.0)
_PHIMOE = HfFamily("phimoe", _phimoe, experts=moe.MIXTRAL)
_GRANITE_MOE = HfFamily("granitemoe", _granite_moe, experts=moe.GRANITE)

FAMILIES: dict[str, HfFamily] = {
    "LlamaForCausalLM": HfFamily("llama"),
    "MistralForCausalLM": HfFamily("mistral", _windowed),
    "MinistralForCausalLM": HfFamily("mistral", _windowed),
    "Qwen2ForCausalLM": HfFamily("qwen2", _qwen2),
    "Qwen3ForCausalLM": HfFamily("qwen3", _qwen3),
    "SmolLM3ForCausalLM": HfFamily("smollm3", _smollm3, theta=2_000_000.0),
    "GraniteForCausalLM": HfFamily("granite", granite),
    "Phi3ForCausalLM": HfFamily("phi3", _windowed, rotary_share=1.0),
    "GemmaForCausalLM": HfFamily("gemma", _gemma, norm_offset=1.0),
    "Gemma2ForCausalLM": HfFamily("gemma2", _gemma2, names.GEMMA2, norm_offset=1.0),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "ApertusForCausalLM": HfFamily("apertus", _apertus, names.APERTUS, theta=12_000_000.0),
    "ArceeForCausalLM": HfFamily("arcee", _ungated, names.UNGATED),
    "BloomForCausalLM": HfFamily("bloom", _bloom, names.BLOOM, names.BLOOM_MODEL, stacking="heads"),
    "CohereForCausalLM": HfFamily("cohere", _cohere, names.layer_names("post_norm"), adjacent=True),
    "Cohere2ForCausalLM": HfFamily("cohere2", _cohere2, names.layer_names("post_norm"), adjacent=True),
    "CwmForCausalLM": HfFamily("cwm", _windowed, theta=1_000_000.0),
    "DeciLMForCausalLM": HfFamily("deci", _deci),
    "Ernie4_5ForCausalLM": HfFamily("ernie4_5", adjacent=True, theta=500_000.0),
    "Exaone4ForCausalLM": HfFamily("exaone4", _exaone4, names.OLMO2),
    "FalconForCausalLM": HfFamily("falcon", _falcon, names.BLOOM, names.FALCON_MODEL, stacking="groups"),
    "GPT2LMHeadModel": HfFamily("gpt2", _learned, names.GPT2, names.GPT2_MODEL, transposed=True),
    "GPTBigCodeForCausalLM": HfFamily("starcoder", _bigcode, names.GPT2, names.GPT2_MODEL),
    "GPTJForCausalLM": HfFamily("gptj", _gptj, names.GPTJ, names.GPTJ_MODEL, adjacent=True, rotary_share=1.0),
    "GPTNeoXForCausalLM": HfFamily("gptneox", _neox, names.NEOX, names.NEOX_MODEL, rotary_share=0.25, stacking="heads"),
    "GlmForCausalLM": HfFamily("glm", adjacent=True, rotary_share=0.5),
    "Glm4ForCausalLM": HfFamily("glm4", _glm4, names.GLM4, adjacent=True, rotary_share=0.5),
    "HunYuanDenseV1ForCausalLM": HfFamily("hunyuan", _hunyuan, names.HUNYUAN),
    "MiniCPMForCausalLM": HfFamily("minicpm", _minicpm),
    "MptForCausalLM": HfFamily("mpt", _mpt, names.MPT, names.MPT_MODEL),
    "NemotronForCausalLM": HfFamily("nemotron", _nemotron, names.UNGATED, norm_offset=1.0, rotary_share=0.5),
    "OPTForCausalLM": HfFamily("opt", _opt, names.OPT, names.OPT_MODEL, first_position=_opt_offset),
    "OlmoForCausalLM": HfFamily("olmo", _olmo, names.OLMO, names.NO_FINAL_WEIGHTS),
    "Olmo2ForCausalLM": HfFamily("olmo2", _olmo2, names.OLMO2),
    "Olmo3ForCausalLM": HfFamily("olmo3", _olmo2, names.OLMO2),
    "PhiForCausalLM": HfFamily("phi2", _phi, names.PHI, names.PHI_MODEL, rotary_share=0.5),
    "SeedOssForCausalLM": HfFamily("seed_oss"),
    "StableLmForCausalLM": HfFamily("stablelm", _stablelm, rotary_share=0.25),
    "Starcoder2ForCausalLM": HfFamily("starcoder2", _starcoder2, names.STARCODER2),
    "Dots1ForCausalLM": HfFamily("dots1", _dots1, experts=moe.DEEPSEEK),
    "Ernie4_5_MoeForCausalLM": HfFamily("ernie4_5_moe", _ernie_moe, experts=moe.ERNIE, adjacent=True, theta=500_000.0),
    "Glm4MoeForCausalLM": HfFamily("glm4_moe", _glm4_moe, experts=moe.DEEPSEEK, rotary_share=0.5),
    "GptOssForCausalLM": HfFamily("gpt_oss", _gpt_oss, experts=moe.GPT_OSS, theta=150_000.0),
    "GraniteMoeForCausalLM": _GRANITE_MOE,
    "GraniteMoeSharedForCausalLM": _GRANITE_MOE,
    "Llama4ForCausalLM": _LLAMA4,
    "Llama4ForConditionalGeneration": _LLAMA4,
    "MiniMaxM2ForCausalLM": HfFamily("minimax_m2", _minimax_m2, experts=moe.MINIMAX, rotary_share=1.0),
    "DeepseekV2ForCausalLM": HfFamily("deepseek_v2", _deepseek_v2, experts=moe.DEEPSEEK_V2, adjacent=True),
    "DeepseekV3ForCausalLM": HfFamily("deepseek_v3", _deepseek_v3, experts=moe.DEEPSEEK, adjacent=True),
    "Glm4MoeLiteForCausalLM": HfFamily("glm4_moe_lite", _glm4_moe_lite, experts=moe.DEEPSEEK, adjacent=True),
    "MiniCPM3ForCausalLM": HfFamily("minicpm3", _minicpm3),
    "YoutuForCausalLM": HfFamily("youtu", latent_fields, adjacent=True),
    "MixtralForCausalLM": HfFamily("mixtral", _mixtral, experts=moe.MIXTRAL),
    "PhiMoEForCausalLM": _PHIMOE,
    "PhimoeForCausalLM": _PHIMOE,
    "OlmoeForCausalLM": HfFamily("olmoe", _olmoe, experts=moe.QWEN),
    "Qwen2MoeForCausalLM": HfFamily("qwen2_moe", _qwen2_moe, experts=moe.QWEN),
    "Qwen3MoeForCausalLM": HfFamily("qwen3_moe", _qwen3_moe, experts=moe.QWEN),
}
