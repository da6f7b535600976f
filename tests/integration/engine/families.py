"""Tiny random models of transformers, one for each kind of decoder, and a comparison of logits with theirs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.native import library
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.model_loader import load_model
from octavo_inference.models.layer_groups import PoolLayout, pool_layout

torch = pytest.importorskip("torch", reason="compares with transformers")
transformers = pytest.importorskip("transformers", reason="compares with transformers")

VOCAB, POSITIONS, WINDOW, BLOCK = 99, 128, 24, 32


@dataclass(frozen=True)
class Family:
    """`model` is the class's name without ForCausalLM; `changes` what its config sets."""

    model: str
    changes: dict[str, Any] = field(default_factory=dict)
    max_model_len: int = POSITIONS
    prompts: tuple[int, ...] = (70, 5, 33, 90)

    def config(self) -> Any:
        inner = {"Gemma3", "Llama4", "Qwen3_5", "Qwen3_5Moe"}  # language models inside of multimodal ones
        name = f"{self.model}{'Text' if self.model in inner else ''}Config"
        base = {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": POSITIONS,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
        return getattr(transformers, name)(**base | self.changes)


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


def tokens_of_experts(**changes: Any) -> dict[str, Any]:
    """Four experts, two of them chosen."""
    return {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, **changes}


ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
PAIRS = list(np.linspace(1.0, 9.0, 8))
FAMILIES = {
    "llama": Family("Llama"),
    "llama-3.1": Family(
        "Llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "llama-biases": Family("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-linear": Family("Llama", rope("linear", factor=4.0)),
    "mistral": Family("Mistral", {"sliding_window": WINDOW}),
    "mistral-nemo": Family("Mistral", {"sliding_window": None, "head_dim": 48}),
    "qwen2": Family("Qwen2"),
    "qwen2-windows": Family("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen2-yarn": Family("Qwen2", rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "qwen3": Family("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "smollm3": Family("SmolLM3"),
    "granite": Family(
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.1,
            "logits_scaling": 8.0,
        },
    ),
    "phi3": Family("Phi3", {"sliding_window": WINDOW}),
    "phi3-short": Family(
        "Phi3",
        rope("longrope", short_factor=PAIRS, long_factor=PAIRS[::-1])
        | {"original_max_position_embeddings": 96, "max_position_embeddings": 384},
        max_model_len=96,
    ),
    "phi3-long": Family(
        "Phi3",
        rope("longrope", short_factor=PAIRS, long_factor=PAIRS[::-1]) | {"original_max_position_embeddings": 32},
        # transformers takes the short divisors for sequences that stay below.
        prompts=(70, 33, 90),
    ),
    "phi4-mini": Family("Phi3", rope("default", partial_rotary_factor=0.75) | {"tie_word_embeddings": True}),
    "gemma2": Family("Gemma2", {"head_dim": 32, "sliding_window": WINDOW, "query_pre_attn_scalar": 16}),
    "gemma2-nearly-linear": Family(
        "Gemma2", {"head_dim": 256, "attn_logit_softcapping": None, "final_logit_softcapping": None}
    ),
    "gemma3": Family(
        "Gemma3", {"head_dim": 32, "sliding_window": WINDOW, "num_hidden_layers": 7, "query_pre_attn_scalar": 40}
    ),
    "gemma3-scaled": Family(
        "Gemma3",
        {
            "head_dim": 32,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
}


DENSE = {
    "gemma": Family("Gemma", {"head_dim": 32}),
    "apertus": Family("Apertus"),
    "arcee": Family("Arcee"),
    "bloom": Family("Bloom", {"n_layer": 4, "n_head": 4}),
    "bloom-12-heads": Family("Bloom", {"n_layer": 2, "n_head": 12, "hidden_size": 192}),
    "cohere": Family("Cohere", {"logit_scale": 0.25}),
    "cohere-norms": Family("Cohere", {"use_qk_norm": True}),
    "cohere2": Family("Cohere2", {"sliding_window": WINDOW}),
    "cwm": Family("Cwm", {"sliding_window": WINDOW}),
    "ernie4_5": Family("Ernie4_5", {"head_dim": 32, "use_bias": True}),
    "exaone4": Family("Exaone4", {"sliding_window": WINDOW}),
    "exaone4-full": Family("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    "falcon": Family("Falcon", {"multi_query": True}),
    "falcon-new": Family("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-alibi": Family("Falcon", {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    "gpt2": Family("GPT2"),
    "gptneox": Family("GPTNeoX"),
    "gptneox-sequential": Family("GPTNeoX", {"use_parallel_residual": False}),
    "gptj": Family("GPTJ", {"rotary_dim": 8}),
    "glm": Family("Glm", {"head_dim": 32, "attention_bias": True}),
    "glm4": Family("Glm4", {"head_dim": 32, "attention_bias": True}),
    "hunyuan": Family("HunYuanDenseV1", {"head_dim": 32}),
    "ministral": Family("Ministral", {"sliding_window": WINDOW, "head_dim": 16}),
    "mpt": Family("Mpt", {"n_layers": 4, "n_heads": 4, "d_model": 64, "max_seq_len": POSITIONS}),
    "nemotron": Family("Nemotron"),
    "opt": Family("OPT", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "olmo": Family("Olmo", {"clip_qkv": 1.5}),
    "olmo2": Family("Olmo2"),
    "olmo3": Family("Olmo3", {"sliding_window": WINDOW}),
    "phi2": Family("Phi"),
    "seed_oss": Family("SeedOss", {"head_dim": 32}),
    "stablelm": Family("StableLm", {"use_qkv_bias": True}),
    "stablelm-2": Family("StableLm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "starcoder": Family("GPTBigCode"),
    "starcoder2": Family("Starcoder2", {"sliding_window": WINDOW}),
}
EXPERTS = {
    "mixtral": Family("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": Family(
        "Qwen2Moe",
        tokens_of_experts(shared_expert_intermediate_size=48, decoder_sparse_step=2),
    ),
    "qwen3_moe": Family("Qwen3Moe", tokens_of_experts(head_dim=32, norm_topk_prob=True, mlp_only_layers=[1])),
    "olmoe": Family("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32}),
    "granitemoe": Family("GraniteMoe", {"num_local_experts": 4, "num_experts_per_tok": 2, "logits_scaling": 4.0}),
    "granitemoe-shared": Family(
        "GraniteMoeShared", {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48}
    ),
    "dots1": Family("Dots1", {**ROUTED, "n_shared_experts": 2, "n_group": 2, "topk_group": 1, "norm_topk_prob": True}),
    "ernie4_5_moe": Family(
        "Ernie4_5_Moe",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1},
    ),
    "glm4_moe": Family(
        "Glm4Moe",
        {**ROUTED, "head_dim": 32, "n_group": 4, "topk_group": 2, "use_qk_norm": True, "routed_scaling_factor": 1.5},
    ),
    "gpt_oss": Family(
        "GptOss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 32,
            "sliding_window": WINDOW,
            "intermediate_size": 32,
        },
    ),
    "llama4": Family(
        "Llama4",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 32,
            "attention_chunk_size": WINDOW,
            "intermediate_size": 32,
            "intermediate_size_mlp": 64,
            "interleave_moe_layer_step": 2,
            "floor_scale": 16,
        },
    ),
    "phimoe": Family(
        "Phimoe",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "router_jitter_noise": 0.2,
            "attention_bias": True,
            "lm_head_bias": True,
        },
    ),
    "minimax_m2": Family("MiniMaxM2", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32}),
}


MAMBA = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_groups": 2,
    "mamba_d_conv": 4, "mamba_chunk_size": 16,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
    "head_dim": 32, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
MIXED = ["mamba", "attention", "mamba", "mamba"]
NEMOTRON = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention"],
    "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2,
    "chunk_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 1.5, "use_bias": True,
}  # fmt: skip
HYBRIDS = {
    "bamba": Family("Bamba", {**MAMBA, "attn_layer_indices": [1]}),
    "falcon_h1": Family(
        "FalconH1",
        {
            **MAMBA, "mamba_d_ssm": 128, "head_dim": 16, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
            "attention_in_multiplier": 1.5, "attention_out_multiplier": 0.7, "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.5, 1.5, 0.8, 1.2, 0.9], "key_multiplier": 0.6,
            "mlp_multipliers": [0.8, 1.3], "embedding_multiplier": 2.0, "lm_head_multiplier": 0.5,
        },
    ),
    "falcon_h1-no-norm": Family("FalconH1", {**MAMBA, "mamba_d_ssm": 128, "head_dim": 16, "mamba_rms_norm": False}),
    "granitehybrid": Family(
        "GraniteMoeHybrid",
        {
            **MAMBA, "layer_types": MIXED, "num_local_experts": 4, "num_experts_per_tok": 2,
            "shared_intermediate_size": 48, "embedding_multiplier": 4.0, "residual_multiplier": 0.4,
            "attention_multiplier": 0.2, "logits_scaling": 4.0, "position_embedding_type": None,
        },
    ),
    "granitehybrid-dense": Family(
        "GraniteMoeHybrid",
        {
            **MAMBA, "layer_types": MIXED, "num_local_experts": 0, "shared_intermediate_size": 48,
            "position_embedding_type": "rope",
        },
    ),
    "lfm2": Family("Lfm2", {"layer_types": ["conv", "full_attention", "conv", "conv"], "block_multiple_of": 8}),
    "lfm2moe": Family(
        "Lfm2Moe",
        {
            "layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_dense_layers": 1,
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        },
    ),
    "mamba2": Family(
        "Mamba2",
        {
            "num_heads": 8, "head_dim": 16, "state_size": 16, "expand": 2, "n_groups": 2, "conv_kernel": 4,
            "chunk_size": 16, "use_bias": True,
        },
    ),
    "nemotron_h": Family("NemotronH", NEMOTRON),
    # Files of llama.cpp do not have the limit.
    "nemotron_h-unlimited": Family("NemotronH", {**NEMOTRON, "time_step_min": 1e-30}),
    "qwen3_next": Family(
        "Qwen3Next", {**DELTA, **tokens_of_experts(shared_expert_intermediate_size=48), "mlp_only_layers": [1]}
    ),
    "qwen3_next-sparse": Family("Qwen3Next", {**DELTA, **tokens_of_experts(shared_expert_intermediate_size=48)}),
    "qwen3_5": Family("Qwen3_5", DELTA),
    "qwen3_5_moe": Family("Qwen3_5Moe", {**DELTA, **tokens_of_experts(shared_expert_intermediate_size=48)}),
}  # fmt: skip
LATENT_SIZES = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32, "mscale": 0.707, "mscale_all_dim": 0.707}
DENSE_LATENT = LATENT_SIZES | {"num_key_value_heads": 4, "first_k_dense_replace": 4}
LATENT = {
    "deepseek_v2": Family("DeepseekV2", DENSE_LATENT | {"q_lora_rank": 32}),
    "deepseek_v2-lite": Family("DeepseekV2", DENSE_LATENT | {"q_lora_rank": None} | rope("yarn", **YARN)),
    "deepseek_v3": Family(
        "DeepseekV3", DENSE_LATENT | {"q_lora_rank": 48} | rope("yarn", **YARN | {"mscale": 1.0, "mscale_all_dim": 1.0})
    ),
    "minicpm3": Family("MiniCPM3", LATENT_SIZES | {"q_lora_rank": 32, "num_key_value_heads": 4, "dim_model_base": 256}),
    "youtu": Family("Youtu", LATENT_SIZES | {"q_lora_rank": 32, "num_key_value_heads": 4}),
}
LATENT_EXPERTS = {
    "deepseek_v2-experts": Family("DeepseekV2", DENSE_LATENT | {"q_lora_rank": 32, "n_shared_experts": 2} | ROUTED),
    "deepseek_v2-groups": Family(
        "DeepseekV2",
        DENSE_LATENT
        | ROUTED
        | {"q_lora_rank": None, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
        | {"routed_scaling_factor": 2.0},
    ),
    "deepseek_v3-experts": Family(
        "DeepseekV3", DENSE_LATENT | ROUTED | {"q_lora_rank": 32, "n_group": 4, "topk_group": 2}
    ),
    "glm4_moe_lite": Family(
        "Glm4MoeLite",
        {key: value for key, value in (DENSE_LATENT | ROUTED).items() if key != "first_k_dense_replace"}
        | {"q_lora_rank": 32, "mlp_layer_types": ["dense", "sparse", "sparse", "dense"]},
    ),
}

# One family for each kind of layer; all others are computed every night. The first ones are those that people run most.
IN_EVERY_RUN = {
    *FAMILIES,
    # LayerNorm, learned positions, ALiBi, parallel layers, norms of the outputs alone, over all heads and by head, MLPs
    # without a gate.
    *("gpt2", "bloom", "cohere-norms", "olmo2", "apertus"),
    # Groups with a correction, a shared MLP, dense layers beside; biases, clamped gates and sinks; weights of experts
    # that multiply their inputs.
    *("glm4_moe", "gpt_oss", "llama4", "phimoe"),
    *("deepseek_v2", "deepseek_v2-lite", "deepseek_v3", "minicpm3", "deepseek_v3-experts"),
    *("falcon_h1", "granitehybrid", "lfm2", "mamba2", "nemotron_h", "qwen3_next", "qwen3_5"),
}


def params(names: Iterable[str]) -> list[Any]:
    """Parameters of a test, those marked `full` that are not computed in every run."""
    return [pytest.param(name, marks=[] if name in IN_EVERY_RUN else [pytest.mark.full]) for name in names]


def build(family: Family) -> Any:
    """Random weights, large enough that every part of the model matters."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    name = {"GPT2": "GPT2LMHeadModel"}.get(family.model, f"{family.model}ForCausalLM")
    model = getattr(transformers, name)(family.config()).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            if "embed_tokens" in name:
                parameter.normal_(0, 0.5)
        for name, buffer in model.named_buffers():
            if "correction" in name:
                buffer.normal_(0, 0.3)
    return model


def save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    Tokenizer(models.BPE({f"t{i}": i for i in range(VOCAB)}, [])).save(str(folder / "tokenizer.json"))


def backends(path: Path, max_model_len: int, only_best: bool = False, dtype: str = "float32") -> list[Any]:
    """The reference and the native kernels over one loaded model."""
    model = load_model(str(path))
    blocks = 24 * len(pool_layout(model.config).groups) + 1
    sizes = {"num_blocks": blocks, "block_size": BLOCK, "max_model_len": max_model_len}
    slots = 8 if model.config.state is not None else 0
    result: list[Any] = [ReferenceBackend(model.config, model.weights, **sizes, state_slots=slots)]
    cpu = {"max_batched_tokens": 256, "max_running": 8, "dtype": dtype, "threads": 2} | sizes
    for variant in library.available()[: 1 if only_best else None]:
        kernels = library.load(variant)
        result += [CpuBackend.create(model.config, model.weights, kernels=kernels, state_slots=slots, **cpu)]
    return result


def batch(
    tokens: list[list[int]],
    blocks: list[list[int]],
    spans: list[tuple[int, int]],
    layout: PoolLayout,
    rows: list[int] | None = None,
) -> Batch:
    """Each sequence advances over its span; `rows` are its slots of states.

    The blocks that its windows have passed are the last one of the pool.
    """
    positions = [np.arange(*span, dtype=np.int32) for span in spans]
    table = np.array(blocks, np.int32) + 24 * np.arange(len(layout.groups), dtype=np.int32)[:, None, None]
    for number, group in enumerate(layout.groups):
        for i, (start, _) in enumerate(spans):
            table[number, i, : group.first_needed(start) // BLOCK] = 24 * len(layout.groups)
    slots = [table[:, i, p // BLOCK] * BLOCK + p % BLOCK for i, p in enumerate(positions)]
    ends = np.cumsum([len(p) for p in positions])
    return Batch(
        tokens=np.concatenate([t[a:b] for t, (a, b) in zip(tokens, spans, strict=True)]).astype(np.int32),
        positions=np.concatenate(positions),
        slots=np.ascontiguousarray(np.concatenate(slots, axis=1)),
        query_start=np.array([0, *ends], np.int32),
        seq_len=np.array([end for _, end in spans], np.int32),
        block_table=table,
        states=np.array([] if rows is None else rows, np.int32),
        sample=SampleRows.greedy((ends - 1).astype(np.int32), np.array([end for _, end in spans], np.int32)),
    )


def spans(length: int) -> list[tuple[int, int]]:
    """Chunks of several sizes, then decode steps."""
    cuts = [0, *(cut for cut in (3, 30, 61) if cut < length - 3), length - 3, length - 2, length - 1, length]
    return list(itertools.pairwise(cuts))


def spoil(backend: Any, block: int) -> None:
    """Fill a block with NaN."""
    saved = backend.to_host([block]).copy()
    saved.view(np.uint8)[:] = 0xFF
    backend.from_host(saved, [block])


def compare(family: Family, model: Any, backend: Any, tolerance: float = 2e-4) -> None:
    """Logits after every chunk and decode step of several prompts that advance side by side."""
    rng = np.random.default_rng(0)
    tokens = [rng.integers(3, VOCAB, length).tolist() for length in family.prompts]
    places = rng.permutation(24).reshape(-1, 3)[: len(tokens)].tolist()
    with torch.inference_mode():
        expected: list[NDArray[np.float32]] = [
            model(torch.tensor([t]), use_cache=False).logits[0].numpy() for t in tokens
        ]
    steps = [spans(len(t)) for t in tokens]
    spoil(backend, backend.num_blocks - 1)
    for step in range(max(map(len, steps))):
        active = [i for i, s in enumerate(steps) if step < len(s)]
        now = [steps[i][step] for i in active]
        placed = [places[i] for i in active]
        got = backend.logits(batch([tokens[i] for i in active], placed, now, backend.layout, active))
        for i, (_, end), row in zip(active, now, got, strict=True):
            wanted = expected[i][end - 1]
            assert np.abs(wanted).max() > 0.05
            np.testing.assert_allclose(row, wanted, atol=tolerance * np.abs(wanted).max() + 2e-5, err_msg=backend.name)
