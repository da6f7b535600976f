"""Which kernels compile while a server serves: python -m tests.kernels.variants KV_DTYPE WEIGHTS [MODEL[:RANKS] ...]

With ranks it is the last of so many that share the model, whose part of the words is the shortest.

Triton compiles a kernel anew for each combination of types, constants, and of what it finds special in sizes and
addresses (a multiple of 16, a 1). Here it is asked for the name of each combination and compiles nothing, so that any
number of batches can be tried: run it without TRITON_INTERPRET.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import triton

from bench.gpu.checked_models import BLOOM, DEEPSEEK, GEMMA, MIXTURE, OLMO, QWEN3, SMOLLM2, random_weights
from bench.gpu.null_gpu import NullGpu
from octavo_inference.backends.cuda.aot.formats import FORMATS, zeros
from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.collectives import RankGroup
from octavo_inference.backends.cuda.device import Device
from octavo_inference.core.model_input import (
    Penalty,
    PromptScores,
    RowChange,
    RowPooling,
    RowSamples,
    RowStep,
    sampling_columns,
)
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import Experts, GatedDelta, LayerParts, Mamba2, ShortConv
from octavo_inference.models.shard import shard
from octavo_inference.models.weights import Tensor, Weights

ROWS, TOKENS, LENGTH, BLOCKS, BLOCK_SIZE = 40, 259, 2000, 200, 16
ADAPTERS = 3
STATE = LayerParts(attention=False, state=True)
SMALL = {"layers": 2, "vocab": 3000, "intermediate": 640}
MODELS = {
    "llama": replace(SMOLLM2, **SMALL),
    "qwen": replace(QWEN3, **SMALL),
    "gemma": replace(GEMMA, **SMALL, windows=(64, None)),
    "granite": replace(SMOLLM2, **SMALL, parts=(STATE, LayerParts()), state=Mamba2(8, 64, 128, 1, 4)),
    "qwen-next": replace(QWEN3, **SMALL, parts=(STATE, LayerParts()), state=GatedDelta(2, 4, 128, 128, 4)),
    "lfm2": replace(SMOLLM2, **SMALL, parts=(STATE, LayerParts()), state=ShortConv(576, 3)),
    "command-r": replace(QWEN3, **SMALL, qk_norm=None, layer_norm=True, parallel=True, shared_norm=True),
    "olmo": replace(OLMO, **SMALL),
    "bloom": replace(BLOOM, **SMALL),
    "llama-4": replace(
        QWEN3, **SMALL, chunks=(64, None), rotated=(True, False), qk_norm_rotated=True, query_temperature=(64.0, 0.1),
        activation="xielu", gated=False,
    ),
    "deepseek": replace(DEEPSEEK, **SMALL),
    "experts": replace(MIXTURE, **SMALL, experts=Experts(count=16, chosen=4, intermediate=384)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel, and what of each argument Triton makes a variant for."""

    kernel: str
    special: dict[str, str]

    def unlike(self, others: Iterable[Variant]) -> str:
        """What sets it apart from the nearest of the others of its kernel."""
        gaps = [
            {
                name: (other.special.get(name), kind)
                for name, kind in self.special.items()
                if other.special.get(name) != kind
            }
            for other in others
            if other.kernel == self.kernel
        ]
        nearest = min(gaps, key=len, default={"": ("", "never launched before")})
        return f"{self.kernel}: " + ", ".join(f"{name} {now}, not {known}" for name, (known, now) in nearest.items())


class Launched:
    """A graph of the null GPU: what it would record is launched, and replays of it launch nothing."""

    bytes = 0

    def __init__(self, work: Callable[[], object]) -> None:
        work()

    def replay(self) -> None:
        pass


class Variants:
    """Triton's hook before it compiles: remembers what it would have compiled, and has it not compile."""

    def __init__(self) -> None:
        self.seen: dict[str, Variant] = {}

    def __call__(self, *, key: str, fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002  Triton's
        names = fn.jit_function.arg_names
        special = {name: str(kind) for name, kind in compile["signature"].items()}
        for (at, *_), value in compile["constants"].items():
            special[names[at]] = f"= {value}"
        for (at, *_), found in compile["configs"][0].items():
            special[names[at]] += f" {found}"
        self.seen.setdefault(fn.name + key, Variant(f"{fn.module}.{fn.name}", special))
        return True


def step_of(rng: np.random.Generator, lengths: list[int], before: list[int], samples: int) -> RowStep:
    """Random tokens; `samples` of the sequences are sampled, each in one of the ways that requests ask for."""
    query_start = np.cumsum([0, *lengths], dtype=np.int32)
    seq_len = np.array(lengths, np.int32) + np.array(before, np.int32)
    width = int(-(-seq_len.max() // BLOCK_SIZE))
    rows, kind = np.arange(len(lengths), dtype=np.int32), rng.integers(0, 5)
    columns = sampling_columns(temperature=0.8, top_p=0.9, top_k=40) if kind else sampling_columns()
    logprobs, penalties, report_ids = np.full(samples, -1, np.int32), [None] * samples, np.empty(0, np.int32)
    changes: list[RowChange] = []
    if kind == 2:
        logprobs[: rng.integers(0, samples + 1)] = rng.integers(0, 21)
    if kind == 3:
        for i in range(rng.integers(0, samples + 1)):
            prompt, total = np.sort(rng.integers(0, 100, 2)).tolist()
            banned = rng.integers(0, 3000, rng.integers(0, 50)).astype(np.int32)
            ruled, masked = rng.random(2) < 0.5
            penalties[i] = Penalty(prompt, total, 0.1, 0.1, 1.1, banned, bool(ruled), bool(masked))
            changes.append(RowChange("tokens", i, 0, rng.integers(0, 3000, total).astype(np.int32)))
    if kind == 4:
        report_ids = rng.integers(0, 2, samples).astype(np.int32)
        logprobs[:] = rng.integers(0, 129)
    scores = [
        PromptScores(int(query_start[i]), i, start, length - 1, int(rng.integers(0, 21)))
        for i, (length, start) in enumerate(zip(lengths, before, strict=True))
        if length > 1 and rng.random() < 0.5
    ]
    for i, (length, start) in enumerate(zip(lengths, before, strict=True)):
        changes += [
            RowChange("tokens", i, start, rng.integers(0, 3000, length).astype(np.int32)),
            RowChange("blocks", i, 0, rng.integers(0, BLOCKS, width).astype(np.int32)),
            RowChange("sampling", i, 0, columns),
        ]
    query = (query_start[1:] - 1)[:samples]
    sample = RowSamples(query, rows[:samples], seq_len[:samples], logprobs, penalties, report_ids)
    pooled = np.arange(samples, len(lengths), dtype=np.int32)
    fresh = (np.array(before, np.int32) == 0)[pooled].astype(np.int32)
    pooling = RowPooling(pooled, query_start[:-1][pooled], query_start[1:][pooled], fresh, np.ones_like(fresh))
    return RowStep(changes, rows, query_start, seq_len, sample, scores=scores, pooling=pooling if len(pooled) else None)


def steps_of(rng: np.random.Generator, count: int) -> list[RowStep]:
    """Decodes of each number, a prompt's chunks of each length, then `count` of both together; some sample none."""
    given = [[1] * rows for rows in range(1, ROWS + 1)] + [[tokens] for tokens in range(1, TOKENS + 1)]
    for _ in range(count):
        lengths = [1] * int(rng.integers(0, ROWS))
        while len(lengths) < ROWS and sum(lengths) < TOKENS and (not lengths or rng.random() < 0.7):
            lengths.append(int(rng.integers(1, TOKENS - sum(lengths) + 1)))
        given.append(lengths)
    found = []
    for lengths in given:
        before = [int(rng.integers(0, LENGTH - n)) for n in lengths]
        samples = len(lengths) if rng.random() < 0.7 else int(rng.integers(0, len(lengths) + 1))
        found.append(step_of(rng, lengths, before, samples))
    return found


def quantised(weights: Weights) -> Weights:
    """Matrices of the same shapes in GGUF's blocks, of nothing but zeros: the head in 8 bits, the others in 4."""

    def blocks(format_: Literal["q4_0", "q8_0"], tensor: Tensor) -> Tensor:
        rows, cols = tensor.shape
        size = {"q4_0": 18, "q8_0": 34}[format_]
        return Tensor(format_, tensor.shape, np.zeros((rows, cols // 32 * size), np.uint8))

    matrices = ("q", "k", "v", "o", "gate", "up", "down")
    layers = tuple(
        replace(layer, **{name: blocks("q4_0", getattr(layer, name)) for name in matrices if getattr(layer, name)})
        for layer in weights.layers
    )
    embedding = blocks("q8_0", weights.embedding)
    return replace(weights, embedding=embedding, lm_head=embedding, layers=layers)


class Alike(RankGroup):
    """Ranks that are not there, and would have said the same."""

    def all_reduce(self, x: torch.Tensor) -> None:
        x.mul_(self.size)

    def gather(self, logits: torch.Tensor, gathered: torch.Tensor) -> None:
        pass


def compiled_late(
    config: ModelConfig, kv_dtype: str, quantization: str, ranks: int, variants: Variants
) -> tuple[int, list[str]]:
    """How many variants `warm_up` compiles, and those that only serving does."""
    if quantization in FORMATS:
        weights = zeros(config, quantization)
    else:
        weights = quantised(random_weights(config)) if quantization == "gguf" else random_weights(config)
    group = Alike(ranks - 1, ranks)
    backend = CudaBackend.create(
        *shard(config, weights, rank=group.rank, size=ranks), group=group,
        device=Device(torch.device("cpu"), "null", (9, 0), 132, 0, 0),
        num_blocks=BLOCKS, block_size=BLOCK_SIZE, max_batched_tokens=TOKENS, max_running=ROWS, max_model_len=LENGTH,
        state_slots=2 * ROWS, adapter_slots=ADAPTERS, max_adapter_rank=24,
        dtype=torch.bfloat16, kv_dtype=kv_dtype, capture=Launched,
        quantization="fp8" if quantization == "fp8" else "auto",
    )  # fmt: skip
    variants.seen.clear()
    backend.warm_up()
    known = set(variants.seen)
    while backend.idle():
        pass
    assert backend.graphs is not None
    backend.graphs.captured.clear()  # or only prompts would be launched kernel by kernel
    rng = np.random.default_rng(0)
    for step in steps_of(rng, 100):
        backend.launch(step).collect()
        if backend.adapter_slots and rng.random() < 0.5:
            slots = rng.integers(-1, ADAPTERS, len(step.row)).astype(np.int32)
            backend.launch(replace(step, adapter=slots)).collect()
    for count in range(1, 20):
        blocks = rng.permutation(BLOCKS)[:count].tolist()
        backend.from_host(backend.to_host(blocks), blocks)
        backend.copy_blocks([(block, (block + 1) % BLOCKS) for block in blocks])
        slots = [slot for slot in range(count) if slot < backend.state_slots]
        if slots:
            backend.states_from_host(backend.states_to_host(slots), slots)
            backend.copy_states([(slot, 2 * ROWS - 1 - slot) for slot in slots])
    before = [variant for key, variant in variants.seen.items() if key in known]
    return len(known), [variant.unlike(before) for key, variant in variants.seen.items() if key not in known]


def main() -> None:
    kv_dtype, quantization, *names = sys.argv[1:]
    NullGpu(90).activate()
    variants = Variants()
    # Dense products are the library's, which compiles nothing; here nobody needs their values.
    torch.mm = torch.addmm = torch._scaled_mm = lambda *_, out, **__: out
    triton.knobs.runtime.jit_cache_hook = variants
    late = 0
    for name in names or MODELS:
        model, _, ranks = name.partition(":")
        count, found = compiled_late(MODELS[model], kv_dtype, quantization, int(ranks or 1), variants)
        print(f"{name}, KV {kv_dtype}, weights {quantization}: {count} variants in warm_up, {len(found)} after it")
        for one in found:
            print(f"  {one}")
        late += len(found)
    sys.exit(1 if late else 0)


if __name__ == "__main__":
    main()
