"""The whole native step against a small numpy decoder, for shapes that fill no tile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo_inference.backends.cpu.backend import CpuBackend, kv_element_bytes
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import packed_bytes
from octavo_inference.common.errors import ModelError, SettingsError
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.core.logit_rules import bitmask
from octavo_inference.core.model_input import Penalty, RowSamples, RowStep, RowTable, sampling_columns
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.ggml_dequant import BlockFormat
from octavo_inference.models.rope import Llama3Scaling
from octavo_inference.models.weights import Matrix, Tensor, Weights, dequantize

from .decoders import random_weights
from .mixture_oracle import mixture
from .test_quantised import random_blocks

Float32 = NDArray[np.float32]
TINY = ModelConfig(
    architecture="llama",
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=112,
    vocab=301,
    max_positions=512,
    rope_theta=10_000.0,
    norm_eps=1e-5,
    tied_embeddings=True,
    eos_token_ids=(0,),
)


def oracle(config: ModelConfig, weights: Weights, tokens: list[int]) -> Float32:
    """Logits of every position of one sequence, [len(tokens), vocab]."""
    count, dim, group = len(tokens), config.head_dim, config.heads // config.kv_heads

    def norm(x: Float32, weight: Tensor | None) -> Float32:
        if weight is None:
            return x
        scale: Float32 = dequantize(weight).ravel() / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps)
        return x * scale

    def heads(x: Float32, matrix: Tensor, bias: Tensor | None) -> Float32:
        return linear(x, matrix, bias).reshape(count, -1, dim)

    def linear(x: Float32, matrix: Tensor, bias: Tensor | None) -> Float32:
        return x @ dequantize(matrix).T + (0 if bias is None else dequantize(bias).ravel())

    def rotate(x: Float32, table: Float32) -> Float32:
        width = table.shape[1]
        cos, sin = table[:, None, : width // 2], table[:, None, width // 2 :]
        a, b = x[..., : width // 2], x[..., width // 2 : width]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., width:]], -1)

    def softcap(x: Float32, cap: float | None) -> Float32:
        return x if cap is None else cap * np.tanh(x / cap)

    def activate(x: Float32) -> Float32:
        if config.activation == "silu":
            return x / (1 + np.exp(-x))
        return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))

    distance = np.arange(count)[:, None] - np.arange(count)
    x = dequantize(weights.embedding)[tokens] * config.embedding_scale
    for number, layer in enumerate(weights.layers):
        h = norm(x, layer.input_norm)
        q, k = norm(heads(h, layer.q, layer.q_bias), layer.q_norm), norm(heads(h, layer.k, layer.k_bias), layer.k_norm)
        rope = config.rope(number)
        if rope is not None:
            table = rope.table(count)
            q, k = rotate(q, table), rotate(k, table)
        v = heads(h, layer.v, layer.v_bias)
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = softcap(np.einsum("qhd,khd->hqk", q, k) * config.score_scale, config.attention_softcap)
        scores = np.where((distance >= 0) & (distance < (config.window(number) or count)), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        attended = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(count, -1)
        x = x + config.residual_scale * norm(linear(attended, layer.o, layer.o_bias), layer.attention_output_norm)
        h = norm(x, layer.post_norm)
        if layer.experts is not None and config.experts is not None:
            out = mixture(config.experts, layer.experts, h, activate)
        else:
            gated = activate(linear(h, layer.gate, layer.gate_bias)) * linear(h, layer.up, layer.up_bias)
            out = linear(gated, layer.down, layer.down_bias)
        x = x + config.residual_scale * norm(out, layer.mlp_output_norm)
    logits = norm(x, weights.final_norm) @ dequantize(weights.lm_head).T * config.logit_scale
    return softcap(logits, config.logit_softcap).astype(np.float32)


@dataclass
class Story:
    """A sequence that a batch advances from `start` to `end`."""

    tokens: list[int]
    blocks: list[int]
    start: int
    end: int


def batch_of(stories: list[Story], block_size: int = 32, *, temperature: float = 0.0) -> Batch:
    positions = [np.arange(s.start, s.end, dtype=np.int32) for s in stories]
    table = np.zeros((len(stories), max(len(s.blocks) for s in stories)), np.int32)
    for i, s in enumerate(stories):
        table[i, : len(s.blocks)] = s.blocks
    counts = np.cumsum([0, *(s.end - s.start for s in stories)])
    slots = [table[i, p // block_size] * block_size + p % block_size for i, p in enumerate(positions)]
    rows = len(stories)
    return Batch(
        tokens=np.concatenate([s.tokens[s.start : s.end] for s in stories]).astype(np.int32),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots).astype(np.int32),
        query_start=counts.astype(np.int32),
        seq_len=np.array([s.end for s in stories], np.int32),
        block_table=table,
        sample=SampleRows(
            row=(counts[1:] - 1).astype(np.int32),
            position=np.array([s.end for s in stories], np.int32),
            seed=np.zeros(rows, np.uint64),
            temperature=np.full(rows, temperature, np.float32),
            top_p=np.ones(rows, np.float32),
            top_k=np.zeros(rows, np.int32),
            min_p=np.zeros(rows, np.float32),
            logprobs=np.full(rows, -1, np.int32),
            adjust=[None] * rows,
        ),
    )


def create(config: ModelConfig, weights: Weights, kernels: Kernels, **changes: object) -> CpuBackend:
    settings: dict[str, object] = {
        "num_blocks": 24,
        "block_size": 32,
        "max_batched_tokens": 256,
        "max_running": 16,
        "max_model_len": 256,
        "dtype": "float32",
        "threads": 2,
    }
    return CpuBackend.create(config, weights, kernels=kernels, **(settings | changes))  # type: ignore[arg-type]


def stories(rng: np.random.Generator, lengths: list[int]) -> list[Story]:
    shuffled = iter(rng.permutation(24).tolist())
    return [
        Story(rng.integers(0, TINY.vocab, n).tolist(), [next(shuffled) for _ in range(-(-n // 32))], 0, n)
        for n in lengths
    ]


@cache
def ragged(config: ModelConfig) -> tuple[Weights, list[Story], Float32]:
    """Weights, sequences of uneven lengths, and the logits after each: once for all variants of the kernels."""
    rng = np.random.default_rng(0)
    weights = random_weights(config, rng)
    given = stories(rng, [1, 5, 33, 64, 100])
    return weights, given, np.stack([oracle(config, weights, s.tokens)[-1] for s in given])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"heads": 4, "kv_heads": 4},
        {"heads": 7, "kv_heads": 1, "qkv_bias": True},
        {"heads": 9, "kv_heads": 3, "head_dim": 64, "hidden": 96},
        {"heads": 2, "kv_heads": 1, "head_dim": 80, "intermediate": 48},
        {"heads": 16, "kv_heads": 1, "head_dim": 32},
        {"head_dim": 96},
        {"head_dim": 128, "rope_scaling": Llama3Scaling(8.0, 1.0, 4.0, 64)},
        {"windows": (40, None)},
        {"windows": (1, 32), "heads": 6, "kv_heads": 1},
        {"attention_softcap": 5.0, "logit_softcap": 3.0},
        {"activation": "gelu_tanh", "output_norms": True, "embedding_scale": 8.0, "head_dim": 256},
        {"qk_norm": "head", "query_scale": 0.2, "windows": (7, None), "local_rope_theta": 100.0},
        {"rotary_dim": 12, "head_dim": 32, "rotated": (True, False)},
        {"qkv_bias": True, "output_bias": True, "mlp_bias": True, "intermediate": 80},
        {"residual_scale": 0.3, "logit_scale": 0.25, "embedding_scale": 12.0, "mlp_bias": True, "output_norms": True},
    ],
    ids=str,
)
def test_logits_of_a_ragged_batch(kernels: Kernels, changes: dict[str, object]) -> None:
    config = replace(TINY, **changes)  # type: ignore[arg-type]
    weights, given, expected = ragged(config)
    backend = create(config, weights, kernels)
    np.testing.assert_allclose(backend.logits(batch_of(given)), expected, atol=2e-3)


def test_a_cap_does_not_hide_logits_that_are_no_numbers(kernels: Kernels, rng: np.random.Generator) -> None:
    config = replace(TINY, logit_softcap=3.0, layers=1)
    weights = random_weights(config, rng)
    weights = replace(weights, final_norm=Tensor("f32", (64,), np.full(64, np.nan, np.float32)))
    assert np.isnan(create(config, weights, kernels).logits(batch_of(stories(rng, [3])))).all()


def test_bfloat16_stays_near(kernels: Kernels, rng: np.random.Generator) -> None:
    weights = random_weights(TINY, rng)
    backend = create(TINY, weights, kernels, dtype="bfloat16")
    given = stories(rng, [40, 70])
    expected = np.stack([oracle(TINY, weights, s.tokens)[-1] for s in given])
    np.testing.assert_allclose(backend.logits(batch_of(given)), expected, atol=0.08)
    assert kv_element_bytes("bfloat16") == 2
    assert kv_element_bytes("float32") == 4


@pytest.mark.parametrize("block_size", [16, 32, 48])
def test_chunks_and_decode_give_what_one_prefill_gives(
    kernels: Kernels, rng: np.random.Generator, block_size: int
) -> None:
    weights = random_weights(TINY, rng)
    backend = create(TINY, weights, kernels, block_size=block_size, num_blocks=12)
    shuffled = rng.permutation(12).tolist()
    story = Story(rng.integers(0, TINY.vocab, 90).tolist(), shuffled[:6], 0, 0)
    other = Story(rng.integers(0, TINY.vocab, 90).tolist(), shuffled[6:], 0, 0)
    expected, beside = oracle(TINY, weights, story.tokens), oracle(TINY, weights, other.tokens)
    for start, end in [(0, 31), (31, 70), (70, 71), (71, 72), (72, 90)]:
        parts = [replace(s, start=start, end=end) for s in (story, other)]
        np.testing.assert_allclose(
            backend.logits(batch_of(parts, block_size)), [expected[end - 1], beside[end - 1]], atol=2e-3
        )


# What makes their values about as large as random_weights'.
QUANTISED_SCALES: dict[BlockFormat, float] = {
    "q4_0": 0.02,
    "q4_1": 0.01,
    "q5_0": 0.01,
    "q5_1": 0.005,
    "q8_0": 0.0015,
    "q4_k": 1e-4,
    "q5_k": 1e-4,
    "q6_k": 2e-5,
}
# Q and K, V, O, gate and up, down, head: what a file mixes. K formats need rows of 256.
MIXED: tuple[BlockFormat, ...] = ("q4_1", "q5_0", "q8_0", "q4_0", "q5_1", "q8_0")
MIXED_K: tuple[BlockFormat, ...] = ("q4_k", "q6_k", "q5_k", "q4_k", "q6_k", "q6_k")


def quantised_weights(
    config: ModelConfig, rng: np.random.Generator, formats: tuple[BlockFormat, ...] = MIXED
) -> Weights:
    """Weights in the formats of a mixed GGUF file."""
    qk, v, o, gate_up, down, lm_head = formats

    def blocks(format_: BlockFormat, like: Matrix) -> Tensor:
        return random_blocks(rng, format_, *like.shape, scale=QUANTISED_SCALES[format_])

    weights = random_weights(config, rng)
    roles = {"q": qk, "k": qk, "v": v, "o": o, "gate": gate_up, "up": gate_up, "down": down}
    layers = tuple(
        replace(
            layer, **{role: blocks(format_, like) for role, format_ in roles.items() if (like := getattr(layer, role))}
        )
        for layer in weights.layers
    )
    head = blocks(lm_head, weights.lm_head)
    return replace(weights, layers=layers, embedding=head, lm_head=head)


@pytest.mark.parametrize("formats", [MIXED, MIXED_K], ids=" ".join)
def test_quantised_weights_stay_near(
    kernels: Kernels, rng: np.random.Generator, formats: tuple[BlockFormat, ...]
) -> None:
    config = replace(TINY, intermediate=128)
    if formats is MIXED_K:
        config = replace(TINY, hidden=256, heads=4, head_dim=64, intermediate=256)
    weights = quantised_weights(config, rng, formats)
    given = stories(rng, [1, 40, 70])
    expected = np.stack([oracle(config, weights, s.tokens)[-1] for s in given])
    kept = create(config, weights, kernels, dtype="auto")
    as_floats = create(config, weights, kernels, dtype="bfloat16")
    for backend, bound in ((kept, 0.1), (as_floats, 0.03)):
        error = np.linalg.norm(backend.logits(batch_of(given)) - expected) / np.linalg.norm(expected)
        assert error < bound
    assert kept._packed.size < 0.6 * as_floats._packed.size
    assert packed_bytes(weights, "auto") <= kept._packed.size <= packed_bytes(weights, "auto") * 1.2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
@pytest.mark.parametrize("changes", [{}, {"windows": (9, 33), "qk_norm": "head", "output_norms": True}], ids=str)
def test_a_token_does_not_depend_on_its_batch(
    kernels: Kernels, rng: np.random.Generator, changes: dict[str, object], dtype: str
) -> None:
    config = replace(TINY, intermediate=128, **changes)  # type: ignore[arg-type]
    weights = quantised_weights(config, rng) if dtype == "auto" else random_weights(config, rng)
    backend = create(config, weights, kernels, dtype=dtype)
    given = stories(rng, [1, 2, 3, 4, 7, 40, 65, 100])
    together = backend.logits(batch_of(given))
    for i, story in enumerate(given):
        alone = backend.logits(batch_of([story]))
        np.testing.assert_array_equal(alone[0], together[i])
        for start in range(0, story.end, 13):
            chunk = backend.logits(batch_of([replace(story, start=start, end=min(start + 13, story.end))]))
        np.testing.assert_array_equal(chunk[0], together[i])


def test_a_copied_block_continues_like_its_source(kernels: Kernels, rng: np.random.Generator) -> None:
    weights = random_weights(TINY, rng)
    backend = create(TINY, weights, kernels)
    tokens = rng.integers(0, TINY.vocab, 41).tolist()
    backend.logits(batch_of([Story(tokens, [3, 4], 0, 40)]))
    backend.copy_blocks([(3, 10), (4, 11)])
    again = backend.logits(batch_of([Story(tokens, [3, 4], 40, 41), Story(tokens, [10, 11], 40, 41)]))
    np.testing.assert_array_equal(again[0], again[1])


def test_step_chooses_the_largest_logit(kernels: Kernels, rng: np.random.Generator) -> None:
    weights = random_weights(TINY, rng)
    backend = create(TINY, weights, kernels)
    given = batch_of(stories(rng, [3, 50, 32]))
    np.testing.assert_array_equal(backend.step(given).tokens, backend.logits(given).argmax(-1))


@pytest.mark.parametrize(("temperature", "logprobs"), [(1.0, 2), (1.0, -1), (0.0, 2), (0.0, -1)])
def test_a_guided_step_samples_when_the_masks_are_there(
    kernels: Kernels, rng: np.random.Generator, temperature: float, logprobs: int
) -> None:
    backend = create(TINY, random_weights(TINY, rng), kernels)
    table = RowTable.zeros(5, 64, backend.block_size, TINY.vocab)
    table.tokens[:] = rng.integers(0, TINY.vocab, table.tokens.shape)
    table.blocks[:, :2] = np.arange(10).reshape(5, 2)
    table.sampling[:] = sampling_columns(seed=3, temperature=temperature, top_p=0.95)
    rows, none = np.arange(5, dtype=np.int32), np.empty(0, np.int32)
    penalty = Penalty(9, 9, 0.0, 0.0, 1.0, none, mask=True)
    samples = RowSamples(9 * rows + 8, rows, rows * 0 + 9, rows * 0 + logprobs, [penalty, None, penalty, None, penalty])
    step = RowStep([], rows, np.arange(0, 54, 9, dtype=np.int32), rows * 0 + 9, samples, table, guided=True)
    launched = backend.launch(step)
    with pytest.raises(RuntimeError, match="before its masks"):
        launched.collect()
    allowed = [rng.integers(0, TINY.vocab, 4).tolist() for _ in range(5)]
    for row in (0, 2, 4):
        table.mask[row] = bitmask(tuple(allowed[row]), TINY.vocab)
    launched.choose([])
    found, wanted = launched.collect(), backend.launch(replace(step, guided=False)).collect()
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert all(found.tokens[row] in allowed[row] for row in (0, 2, 4))
    np.testing.assert_array_equal(found.logprob, wanted.logprob)
    with pytest.raises(RuntimeError, match="without guided rows"):
        backend.launch(replace(step, guided=False)).choose([])


def test_a_step_may_sample_nothing(kernels: Kernels, rng: np.random.Generator) -> None:
    backend = create(TINY, random_weights(TINY, rng), kernels)
    given = batch_of(stories(rng, [20]))
    none = SampleRows(*(getattr(given.sample, f)[:0] for f in SampleRows.__slots__))
    assert len(backend.step(replace(given, sample=none)).tokens) == 0


def test_the_backend_names_its_sizes_and_variant(kernels: Kernels, rng: np.random.Generator) -> None:
    backend = create(TINY, random_weights(TINY, rng), kernels, num_blocks=7)
    assert backend.num_blocks == 7
    assert backend.vocab_size == TINY.vocab
    assert kernels.variant in backend.name


def test_packing_takes_what_was_foreseen(kernels: Kernels, rng: np.random.Generator) -> None:
    weights = random_weights(TINY, rng)
    for dtype, format_ in (("bfloat16", "bf16"), ("float32", "f32")):
        backend = create(TINY, weights, kernels, dtype=dtype)
        # Each matrix is padded to whole panels; here that is 7 rows of 301 and 0 to 31 of the others.
        assert packed_bytes(weights, format_) <= backend._packed.size <= packed_bytes(weights, format_) * 1.2
    rounded = create(TINY, weights, kernels, dtype="auto", quantization="int8")
    assert packed_bytes(weights, "int8") <= rounded._packed.size <= packed_bytes(weights, "int8") * 1.2
    assert rounded._packed.size < backend._packed.size / 2  # of float32


@pytest.mark.parametrize(
    ("dtype", "quantization", "field"), [("auto", "fp8", "quantization"), ("float32", "int8", "dtype")]
)
def test_a_quantization_without_kernels_is_refused(
    kernels: Kernels, rng: np.random.Generator, dtype: str, quantization: str, field: str
) -> None:
    with pytest.raises(SettingsError, match=r"auto$") as refused:
        create(TINY, random_weights(TINY, rng), kernels, dtype=dtype, quantization=quantization)
    assert refused.value.field == field


def test_sizes_the_kernels_cannot_run_are_refused(kernels: Kernels, rng: np.random.Generator) -> None:
    weights = random_weights(TINY, rng)
    with pytest.raises(ModelError, match="head_dim size is 24"):
        create(replace(TINY, head_dim=24), weights, kernels)
    with pytest.raises(ModelError, match="5 attention heads cannot share 2"):
        create(replace(TINY, heads=5), weights, kernels)
    with pytest.raises(SettingsError, match="block size is 24"):
        create(TINY, weights, kernels, block_size=24)
    with pytest.raises(SettingsError, match="float16"):
        create(TINY, weights, kernels, dtype="float16")
