"""The cost of LoRA adapters per decode step, on the CPU backend: python -m bench.cpu.adapters.

    python -m bench.cpu.adapters                       # the built-in model, and layers as large as an 8B model's
    python -m bench.cpu.adapters --models small --rounds 3

All rows of a step have an adapter, of which there are 1, 8 or 64, changing all matrices. Steps with and without take
turns, and a ratio is of the medians, so that a machine whose speed drifts changes both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib.host import new_report
from bench.lib.results import save
from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.adapter import Adapter, LowRank
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Tensor, Weights, bf16_bits, layer_of, part_tensors

ROWS, CONTEXT, BLOCK = 64, 64, 16
COUNTS = (1, 8, 64)
FIELDS = frozenset({"q", "k", "v", "o", "gate", "up", "down"})
Shapes = list[dict[str, tuple[int, ...]]]


def small() -> tuple[ModelConfig, Weights]:
    """The built-in model."""
    model = load_model("smollm2")
    if not isinstance(model, LoadedModel):
        raise TypeError("the built-in model is native")
    return model.config, model.weights


def large() -> tuple[ModelConfig, Weights]:
    """Two random layers of the sizes of Llama 3.1 8B, in bfloat16."""
    rng = np.random.default_rng(0)
    config = ModelConfig(
        architecture="llama", layers=2, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336,
        vocab=32_000, max_positions=1024, rope_theta=5e5, norm_eps=1e-5, tied_embeddings=True, eos_token_ids=(0,),
    )  # fmt: skip

    def matrix(rows: int, columns: int) -> Tensor:
        values = rng.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)
        return Tensor("bf16", (rows, columns), bf16_bits(values))

    def norm(size: int) -> Tensor:
        return Tensor("f32", (size,), np.ones(size, np.float32))

    layers = tuple(layer_of(config, matrix, norm) for _ in range(config.layers))
    embedding = matrix(config.vocab, config.hidden)
    return config, Weights(embedding, layers, norm(config.hidden), embedding)


MODELS: dict[str, Callable[[], tuple[ModelConfig, Weights]]] = {"small": small, "large": large}


def adapter(shapes: Shapes, rank: int, seed: int) -> Adapter:
    """Changes of all matrices of all layers."""
    rng = np.random.default_rng(seed)

    def change(rows: int, columns: int) -> LowRank:
        down = rng.standard_normal((rank, columns), np.float32) * np.float32(columns**-0.5)
        return LowRank(down, rng.standard_normal((rows, rank), np.float32) * np.float32(0.01))

    layers = tuple({name: change(*shape) for name, shape in layer.items()} for layer in shapes)
    return Adapter(str(seed), layers)


def decode_step() -> Batch:
    """A token of each of the rows."""
    row = np.arange(ROWS, dtype=np.int32)
    blocks = CONTEXT // BLOCK
    table = np.ascontiguousarray((row[:, None] * blocks + np.arange(blocks))[None], np.int32)
    return Batch(
        tokens=row + 1,
        positions=np.full(ROWS, CONTEXT - 1, np.int32),
        slots=(row[None] + 1) * CONTEXT - 1,
        query_start=np.arange(ROWS + 1, dtype=np.int32),
        seq_len=np.full(ROWS, CONTEXT, np.int32),
        block_table=table,
        sample=SampleRows.greedy(row, np.full(ROWS, CONTEXT, np.int32)),
    )


def measure(name: str, rank: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step without adapters, and the ratios of steps with them."""
    config, weights = MODELS[name]()
    backend = CpuBackend.create(
        config, weights, num_blocks=ROWS * CONTEXT // BLOCK, block_size=BLOCK, max_batched_tokens=ROWS,
        max_running=ROWS, max_model_len=CONTEXT, adapter_slots=max(COUNTS), max_adapter_rank=rank,
    )  # fmt: skip
    shapes = [
        {each: tensor.shape for each, tensor in part_tensors(layer) if each in FIELDS} for layer in weights.layers
    ]
    sizes = []
    for slot in range(max(COUNTS)):
        packed = backend.prepare_adapter(adapter(shapes, rank, slot))
        sizes.append(packed.nbytes)
        backend.load_adapter(slot, packed)
    plain = decode_step()
    steps = {0: plain} | {
        count: replace(plain, adapter=np.arange(ROWS, dtype=np.int32) * count // ROWS) for count in COUNTS
    }
    times: dict[int, list[float]] = {count: [] for count in steps}
    for number in range(rounds + 1):
        for count, step in steps.items():
            began = time.perf_counter()
            backend.step(step)
            if number:  # the first round reads memory for the first time
                times[count].append(time.perf_counter() - began)
    medians = {count: statistics.median(each) for count, each in times.items()}
    return {
        "model": name,
        "backend": backend.name,
        "rank": rank,
        "adapter_mb": statistics.median(sizes) / 1e6,
        "weights_mb": backend.weight_bytes / 1e6,
        "step_ms": 1e3 * medians[0],
        **{f"ratio_{count}": medians[count] / medians[0] for count in COUNTS},
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = []
    for name in given.models:
        found.append(measure(name, given.rank, given.rounds))
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in found[-1].items()})
    if given.out:
        save(given.out, new_report(rows=ROWS, context=CONTEXT, loads=found))


if __name__ == "__main__":
    main()
