"""Decoding with a mixture of experts next to the memory's speed: python -m bench.cpu.experts.

    python -m bench.cpu.experts                    # 4 bits, result in results/experts-<date>.json
    python -m bench.cpu.experts --format bf16 --layers 2 --rounds 1

A random model with layers of Qwen3-30B-A3B (128 experts of 768, 8 chosen), cut to a few layers and a small vocabulary.
Its matrices are copies of a few, each with memory of its own. Steps decode 1 or 64 sequences of random tokens, so that
each step chooses other experts. Bytes are those that a step must read: the packed weights of attention, router and
head, and of the experts that its tokens chose. A ratio is a step's time to the time of these bytes at the read speed
that was measured in the same round.
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
from octavo_inference.models.layers import Experts, LayerParts
from octavo_inference.models.weights import ExpertWeights, LayerWeights, Tensor, Weights, bf16_bits

BLOCK_SIZE, CONTEXT, LONGEST = 16, 64, 80
BATCHES = (1, 64)
LAYER = ModelConfig(
    architecture="experts", layers=1, hidden=2048, heads=32, kv_heads=4, head_dim=128, intermediate=6144, vocab=4096,
    max_positions=4096, rope_theta=1e6, norm_eps=1e-6, tied_embeddings=True, eos_token_ids=(0,), qk_norm="head",
    experts=Experts(count=128, chosen=8, intermediate=768),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizes:
    """Packed bytes that each step reads, and those of one expert."""

    always: int
    expert: int


def model(layers: int, format_: str, rng: np.random.Generator) -> tuple[ModelConfig, Weights, Sizes]:
    """The decoder, its weights, and what they take when packed."""
    config = replace(LAYER, layers=layers, parts=(LayerParts(feed_forward="experts"),) * layers)
    experts, hidden, heads = config.experts, config.hidden, config.heads * config.head_dim
    assert experts is not None  # noqa: S101 (see LAYER)
    keys = config.kv_heads * config.head_dim

    def norm(width: int) -> Tensor:
        return Tensor("f32", (width,), np.ones(width, np.float32))

    gate, down = (
        matrix(format_, *shape, rng) for shape in ((experts.intermediate, hidden), (hidden, experts.intermediate))
    )
    mixture = ExpertWeights(
        router=matrix("bf16", experts.count, hidden, rng),
        gate=(gate,) * experts.count,
        up=(gate,) * experts.count,
        down=(down,) * experts.count,
    )
    layer = LayerWeights(
        input_norm=norm(hidden),
        q=matrix(format_, heads, hidden, rng),
        k=matrix(format_, keys, hidden, rng),
        v=matrix(format_, keys, hidden, rng),
        o=matrix(format_, hidden, heads, rng),
        post_norm=norm(hidden),
        q_norm=norm(config.head_dim),
        k_norm=norm(config.head_dim),
        experts=mixture,
    )
    # Routers differ, or all layers would choose the same experts for a token.
    all_layers = tuple(
        replace(layer, experts=replace(mixture, router=matrix("bf16", experts.count, hidden, rng)))
        for _ in range(layers)
    )
    embedding = matrix("bf16", config.vocab, hidden, rng)
    weights = Weights(embedding, all_layers, norm(hidden), embedding)
    none = replace(mixture, gate=(), up=(), down=())
    bare = replace(weights, layers=tuple(replace(layer, experts=none) for layer in all_layers))
    always = packed_bytes(bare, "auto")
    return config, weights, Sizes(always, (packed_bytes(weights, "auto") - always) // (layers * experts.count))


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
        slots=table[:, CONTEXT // BLOCK_SIZE] * BLOCK_SIZE + CONTEXT % BLOCK_SIZE,
        query_start=np.arange(count + 1, dtype=np.int32),
        seq_len=lengths,
        block_table=table,
        sample=SampleRows.greedy(numbers, lengths),
    )


def steps(backend: CpuBackend, sizes: Sizes, count: int, seconds: float, rng: np.random.Generator) -> dict[str, float]:
    """Milliseconds and bytes of a step, each the median over steps."""
    taken: list[float] = []
    read: list[int] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 5:
        batch = decode(count, rng.integers(0, backend.vocab_size, count, dtype=np.int32))
        before = backend.expert_tokens()
        start = time.perf_counter()
        backend.step(batch)
        taken.append(time.perf_counter() - start)
        after = backend.expert_tokens()
        assert before is not None and after is not None  # noqa: S101, PT018 (the model has experts)
        read.append(sizes.always + int((after > before).sum()) * sizes.expert)
    return {"ms": 1e3 * statistics.median(taken), "bytes": statistics.median(read), "steps": len(taken)}


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--format", choices=("q4_0", "bf16"), default="q4_0")
    add("--layers", type=int, default=4, help="128 experts of a layer take 340 MB in 4 bits, 1.2 GB in bf16")
    add("--threads", type=int, default=usable_cores())
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=5, help="of each batch in a round")
    add("--output", type=Path, help="result file (default: bench/results/experts-<date>.json)")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    config, weights, sizes = model(given.layers, given.format, rng)
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
    )
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        _, program = roofline.build(Path(folder))
        for _ in range(given.rounds):
            limit = roofline.measure(program, given.threads)
            rounds.append({"limits": limit})
            for count in BATCHES:
                found: dict[str, Any] = dict(steps(backend, sizes, count, given.seconds, rng))
                found["ratio"] = found["ms"] / (found["bytes"] / limit["read_gb_per_s"] / 1e6)
                rounds[-1][str(count)] = found
    print(f"{backend.name}, {given.format}, {given.layers} layers; medians of {given.rounds} rounds")
    print("| sequences | ms a step | MB read | GB/s | time to that of its bytes |\n|--:|--:|--:|--:|--:|")
    for count in BATCHES:
        of = [each[str(count)] for each in rounds]
        ms, size, ratio = (statistics.median(each[name] for each in of) for name in ("ms", "bytes", "ratio"))
        print(f"| {count} | {ms:.2f} | {size / 1e6:.0f} | {size / ms / 1e6:.1f} | {ratio:.2f} |")
    about = {"format": given.format, "layers": given.layers, "threads": given.threads, "variant": backend.name}
    save(given.output or result_file("experts"), new_report(**about, rounds=rounds))


if __name__ == "__main__":
    main()
