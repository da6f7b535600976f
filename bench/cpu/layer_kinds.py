"""Decoding with each kind of layer next to the memory's speed: python -m bench.cpu.layer_kinds.

    python -m bench.cpu.layer_kinds                # experts in 4 bits, result in results/layers-experts-<date>.json
    python -m bench.cpu.layer_kinds --kind latent  # also mamba2 and delta
    python -m bench.cpu.layer_kinds --format bf16 --layers 2 --rounds 1

A random model with layers of a published one, cut to a few layers and a small vocabulary: experts of Qwen3-30B-A3B
(128 of 768, 8 chosen), latents of DeepSeek-V2-Lite, Mamba-2 of Granite 4 H Tiny, gated delta nets of Qwen3-Next, the
last three with a dense MLP. Its matrices are copies of a few, each with memory of its own. Steps decode 1 or 64
sequences of random tokens, so that each step chooses other experts. Bytes are those that a step must read: packed
weights, without experts that none of its tokens chose, and states, which are also written. A ratio is a step's time to
the time of these bytes at the read speed that was measured in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.cpu.runners import roofline
from bench.lib.host import new_report, result_file
from bench.lib.results import save
from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.native.cores import usable_cores
from octavo_inference.backends.cpu.native.packed_formats import packed_bytes
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.ggml_dequant import BlockFormat
from octavo_inference.models.layers import Experts, GatedDelta, LatentAttention, LayerParts, Mamba2
from octavo_inference.models.weights import LayerWeights, Tensor, Weights, bf16_bits, experts_of, layer_of

BLOCK_SIZE, CONTEXT, LONGEST = 16, 64, 80
BATCHES = (1, 64)
_STATE = LayerParts(attention=False, state=True)
LAYER = ModelConfig(
    architecture="layers", layers=1, hidden=2048, heads=32, kv_heads=4, head_dim=128, intermediate=6144, vocab=4096,
    max_positions=4096, rope_theta=1e6, norm_eps=1e-6, tied_embeddings=True, eos_token_ids=(0,), qk_norm="head",
)  # fmt: skip
KINDS = {
    "experts": replace(
        LAYER, experts=Experts(count=128, chosen=8, intermediate=768), parts=(LayerParts(feed_forward="experts"),)
    ),
    "latent": replace(
        LAYER, heads=16, kv_heads=1, head_dim=192, rotary_dim=64, qk_norm=None, parts=(LayerParts(),),
        latent=LatentAttention(kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    ),
    "mamba2": replace(LAYER, parts=(_STATE,), state=Mamba2(48, 64, 128, 1, 4)),
    "delta": replace(LAYER, parts=(_STATE,), state=GatedDelta(16, 32, 128, 128, 4)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizes:
    """Packed bytes that each step reads, and those of one expert."""

    always: int
    expert: int


def model(kind: str, layers: int, format_: str, rng: np.random.Generator) -> tuple[ModelConfig, Weights, Sizes]:
    """The decoder, its weights, and what they take when packed."""
    config = replace(KINDS[kind], layers=layers, parts=KINDS[kind].parts * layers)
    kept: dict[tuple[int, int], Tensor] = {}

    def shared(rows: int, columns: int) -> Tensor:
        """One matrix for all places of its shape: each is packed by itself."""
        if (rows, columns) not in kept:
            kept[rows, columns] = matrix(format_, rows, columns, rng)
        return kept[rows, columns]

    def router(rows: int, columns: int) -> Tensor:
        """They differ, or all layers would choose the same experts for a token."""
        return matrix("bf16", rows, columns, rng)

    def norm(width: int) -> Tensor:
        return Tensor("f32", (width,), np.ones(width, np.float32))

    def layer(number: int) -> LayerWeights:
        return layer_of(config, shared, norm, experts_of(config, shared, router) if config.experts else None, number)

    embedding = matrix("bf16", config.vocab, config.hidden, rng)
    weights = Weights(embedding, tuple(map(layer, range(layers))), norm(config.hidden), embedding)
    size = packed_bytes(weights, "auto")
    if config.experts is None:
        return config, weights, Sizes(size, 0)
    bare = replace(weights, layers=tuple(map(_without_experts, weights.layers)))
    always = packed_bytes(bare, "auto")
    return config, weights, Sizes(always, (size - always) // (layers * config.experts.count))


def _without_experts(layer: LayerWeights) -> LayerWeights:
    return replace(layer, experts=layer.experts and replace(layer.experts, gate=(), up=(), down=()))


def matrix(format_: str, rows: int, columns: int, rng: np.random.Generator) -> Tensor:
    """A random matrix whose products are about as large as its input."""
    values = (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)
    if format_ == "bf16":
        return Tensor("bf16", values.shape, bf16_bits(values))
    kind: BlockFormat = "q4_0"
    groups = values.reshape(rows, -1, 32)
    scale = np.abs(groups).max(-1, keepdims=True) / 7
    q = np.clip(np.rint(groups / scale) + 8, 0, 15).astype(np.uint8)
    nibbles = q[..., :16] | q[..., 16:] << 4
    blocks = np.concatenate([scale.astype(np.float16).view(np.uint8), nibbles], -1)
    return Tensor(kind, values.shape, blocks.reshape(rows, -1))


def decode(count: int, tokens: NDArray[np.int32]) -> Batch:
    """A decode step of `count` sequences with CONTEXT tokens before it."""
    numbers = np.arange(count, dtype=np.int32)
    blocks = -(-LONGEST // BLOCK_SIZE)
    table = (numbers[:, None] * blocks + np.arange(blocks)).astype(np.int32)
    lengths = np.full(count, CONTEXT + 1, np.int32)
    return Batch(
        tokens=tokens,
        positions=lengths - 1,
        slots=(table[:, CONTEXT // BLOCK_SIZE] * BLOCK_SIZE + CONTEXT % BLOCK_SIZE)[None],
        query_start=np.arange(count + 1, dtype=np.int32),
        seq_len=lengths,
        block_table=table[None],
        sample=SampleRows.greedy(numbers, lengths),
        states=numbers,
    )


def steps(
    backend: CpuBackend, config: ModelConfig, sizes: Sizes, count: int, seconds: float, rng: np.random.Generator
) -> dict[str, float]:
    """Milliseconds and bytes of a step, each the median over steps."""
    taken: list[float] = []
    read: list[int] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 5:
        tokens = rng.integers(0, backend.vocab_size, count, dtype=np.int32)
        batch = decode(count, tokens)
        before = backend.expert_tokens()
        start = time.perf_counter()
        backend.step(batch)
        taken.append(time.perf_counter() - start)
        after = backend.expert_tokens()
        used = 0 if before is None or after is None else int((after > before).sum())
        read.append(sizes.always + used * sizes.expert + 2 * count * config.state_bytes)
    return {"ms": 1e3 * statistics.median(taken), "bytes": statistics.median(read), "steps": len(taken)}


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--kind", choices=KINDS, default="experts")
    add("--format", choices=("q4_0", "bf16"), default="q4_0")
    add("--layers", type=int, default=4, help="128 experts of a layer take 340 MB in 4 bits, 1.2 GB in bf16")
    add("--threads", type=int, default=usable_cores())
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=5, help="of each batch in a round")
    add("--output", type=Path, help="result file (default: bench/results/layers-<kind>-<date>.json)")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    config, weights, sizes = model(given.kind, given.layers, given.format, rng)
    most = max(BATCHES)
    backend = CpuBackend.create(
        config,
        weights,
        num_blocks=most * -(-LONGEST // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_batched_tokens=most,
        max_running=most,
        max_model_len=LONGEST,
        threads=given.threads,
        state_slots=most if config.state is not None else 0,
    )
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        _, program = roofline.build(Path(folder))
        for _ in range(given.rounds):
            limit = roofline.measure(program, given.threads)
            rounds.append({"limits": limit})
            for count in BATCHES:
                found: dict[str, Any] = dict(steps(backend, config, sizes, count, given.seconds, rng))
                found["ratio"] = found["ms"] / (found["bytes"] / limit["read_gb_per_s"] / 1e6)
                rounds[-1][str(count)] = found
    print(f"{given.kind}, {backend.name}, {given.format}, {given.layers} layers; medians of {given.rounds} rounds")
    print("| sequences | ms a step | MB read | GB/s | time to that of its bytes |\n|--:|--:|--:|--:|--:|")
    for count in BATCHES:
        of = [each[str(count)] for each in rounds]
        ms, size, ratio = (statistics.median(each[name] for each in of) for name in ("ms", "bytes", "ratio"))
        print(f"| {count} | {ms:.2f} | {size / 1e6:.0f} | {size / ms / 1e6:.1f} | {ratio:.2f} |")
    about = {
        "kind": given.kind,
        "format": given.format,
        "layers": given.layers,
        "threads": given.threads,
        "variant": backend.name,
    }
    save(given.output or result_file(f"layers-{given.kind}"), new_report(**about, rounds=rounds))


if __name__ == "__main__":
    main()
