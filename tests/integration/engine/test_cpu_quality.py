"""The CPU backend on real weights against transformers in fp32 on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.native import needs_native
from transformers import LlamaConfig, LlamaForCausalLM

from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.core.model_input import Float32
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.weights import Tensor, dequantize

pytestmark = needs_native

LAYER_NAMES = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
PROMPTS = ["The capital of France is", "Water boils at", "def fibonacci(n):", "Once upon a time, there was a"]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("smollm2")


@pytest.fixture(scope="module")
def exact(model: LoadedModel) -> Callable[[list[int]], Float32]:
    """fp32 logits [len(tokens), vocab] of a sequence, by transformers."""
    config, weights = model.config, model.weights

    def as_torch(tensor: Tensor) -> torch.Tensor:
        return torch.from_numpy(np.array(dequantize(tensor), np.float32))

    state: dict[str, Any] = {
        "model.embed_tokens.weight": as_torch(weights.embedding),
        "model.norm.weight": as_torch(weights.final_norm),
    }
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    for i, layer in enumerate(weights.layers):
        for mine, theirs in LAYER_NAMES.items():
            state[f"model.layers.{i}.{theirs}.weight"] = as_torch(getattr(layer, mine))
    peer_config = LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
    )
    peer = LlamaForCausalLM(peer_config).float().eval()
    peer.load_state_dict(state)

    def logits(tokens: list[int]) -> Float32:
        with torch.inference_mode():
            result: Float32 = peer(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
        return result

    return logits


def backend(model: LoadedModel, dtype: str, quantization: str = "auto") -> CpuBackend:
    return CpuBackend.create(
        model.config,
        model.weights,
        num_blocks=16,
        block_size=32,
        max_batched_tokens=512,
        max_running=512,
        max_model_len=512,
        dtype=dtype,  # type: ignore[arg-type]
        quantization=quantization,  # type: ignore[arg-type]
    )


def one_sequence(tokens: list[int], start: int, rows: NDArray[np.int32]) -> Batch:
    count = len(rows)
    return Batch(
        tokens=np.array(tokens[start:], np.int32),
        positions=np.arange(start, len(tokens), dtype=np.int32),
        slots=np.arange(start, len(tokens), dtype=np.int32)[None],
        query_start=np.array([0, len(tokens) - start], np.int32),
        seq_len=np.array([len(tokens)], np.int32),
        block_table=np.arange(16, dtype=np.int32)[None, None],
        sample=SampleRows.greedy(rows, np.full(count, len(tokens), np.int32)),
    )


@pytest.fixture(scope="module")
def passage(model: LoadedModel, exact: Callable[[list[int]], Float32]) -> tuple[list[int], NDArray[np.float64]]:
    """English text and its fp32 log-probabilities."""
    text = (Path(__file__).parents[3] / "LICENSE").read_text(encoding="utf-8")
    tokens = list(model.text.tokenizer.encode(text).ids[:256])
    return tokens, log_softmax(exact(tokens))


def log_softmax(logits: Float32) -> NDArray[np.float64]:
    wide = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return result


# "auto" multiplies the file's 4-bit weights with activations of 8 bits.
@pytest.mark.parametrize(
    ("dtype", "bound", "agreeing"), [("auto", 1e-2, 0.93), ("bfloat16", 1e-3, 0.98), ("float32", 1e-8, 0.98)]
)
def test_distributions_stay_near_fp32(
    model: LoadedModel, passage: tuple[list[int], NDArray[np.float64]], dtype: str, bound: float, agreeing: float
) -> None:
    tokens, theirs = passage
    rows = np.arange(len(tokens), dtype=np.int32)
    mine = log_softmax(backend(model, dtype).logits(one_sequence(tokens, 0, rows)))
    divergence = (np.exp(theirs) * (theirs - mine)).sum(-1)
    print(f"{dtype}: mean KL {divergence.mean():.2e}, max {divergence.max():.2e}")
    assert divergence.mean() < bound
    assert (theirs.argmax(-1) == mine.argmax(-1)).mean() > agreeing


def test_rounding_floats_to_int8_stays_near_fp32(
    model: LoadedModel, passage: tuple[list[int], NDArray[np.float64]]
) -> None:
    tokens, theirs = passage

    def floats(tensor: Tensor) -> Tensor:
        return Tensor("f32", tensor.shape, np.ascontiguousarray(dequantize(tensor), np.float32))

    names = ("q", "k", "v", "o", "gate", "up", "down")
    layers = tuple(replace(la, **{n: floats(getattr(la, n)) for n in names}) for la in model.weights.layers)
    weights = replace(model.weights, layers=layers, lm_head=floats(model.weights.lm_head))
    rounded = backend(replace(model, weights=weights), "auto", "int8")
    mine = log_softmax(rounded.logits(one_sequence(tokens, 0, np.arange(len(tokens), dtype=np.int32))))
    divergence = (np.exp(theirs) * (theirs - mine)).sum(-1)
    print(f"int8: mean KL {divergence.mean():.2e}, max {divergence.max():.2e}")
    assert divergence.mean() < 1e-2
    assert (theirs.argmax(-1) == mine.argmax(-1)).mean() > 0.93


def test_greedy_tokens_are_those_of_fp32(model: LoadedModel, exact: Callable[[list[int]], Float32]) -> None:
    engine = backend(model, "bfloat16")
    for prompt in PROMPTS:
        tokens = list(model.text.tokenizer.encode(prompt).ids)
        first, start = len(tokens), 0
        for _ in range(32):
            batch = one_sequence(tokens, start, np.array([len(tokens) - start - 1], np.int32))
            start = len(tokens)
            tokens.append(int(engine.step(batch).tokens[0]))
        # Over its own continuation, so that one tie does not make all that follows incomparable.
        logits = exact(tokens)[first - 1 : -1]
        chosen = np.take_along_axis(logits, np.array(tokens[first:])[:, None], 1)[:, 0]
        behind = logits.max(-1) - chosen
        assert (behind < 0.05).all(), f"{prompt!r}: not a tie, {behind.max():.3f} behind"
        assert (behind > 0).mean() <= 0.07


def test_pools_of_more_than_2_gigabytes_are_addressed(model: LoadedModel) -> None:
    small = replace(model.config, layers=1)
    weights = replace(model.weights, layers=model.weights.layers[:1])
    tokens = list(range(200, 264))
    rows = np.array([63], np.int32)
    few = CpuBackend.create(
        small, weights, num_blocks=16, block_size=32, max_batched_tokens=64, max_running=1, max_model_len=512
    )
    many = CpuBackend.create(
        small, weights, num_blocks=200_000, block_size=32, max_batched_tokens=64, max_running=1, max_model_len=512
    )
    batch = one_sequence(tokens, 0, rows)
    far = replace(batch, slots=batch.slots + 199_000 * 32, block_table=batch.block_table + 199_000)
    np.testing.assert_array_equal(few.logits(batch), many.logits(far))
