"""The operator's estimate for GPUs, from headers of files, agrees with the backend's plan on the GPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.buffers import StepLimits
from octavo_inference.backends.cuda.collectives import ALONE
from octavo_inference.backends.cuda.device import MIN_CAPABILITY, Device
from octavo_inference.backends.cuda.factory import MemoryNeeds, memory_needs
from octavo_inference.backends.cuda.footprint import gpu_report
from octavo_inference.backends.cuda.graphs import graph_sizes
from octavo_inference.common.errors import DeviceError
from octavo_inference.config.engine import GPU_PROFILES, EngineSettings
from octavo_inference.core.kv_cache_sizing import fit
from octavo_inference.download.inspect import inspect
from octavo_inference.engine.cuda_factory import build_cuda
from octavo_inference.model_loader import LoadedModel, TextModel, load_model
from octavo_inference.models.added_ids import with_added_ids
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix, Grouping
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.layers import Experts, LatentAttention, LayerParts
from octavo_inference.models.shard import shard
from octavo_inference.models.weights import Format, LayerWeights, Matrix, Tensor, Weights, experts_of, layer_of
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.observe.gpu_fit import LEAST_MAJOR, Card
from octavo_operator.observe.gpu_memory import GpuEstimate, estimate, graph_count
from octavo_operator.observe.gpu_refusal import gpu_refusal
from octavo_protocol.model import ModelReport, encode_inspection

from ..unit.engine.echo import tiny_model  # noqa: TID252 -- tests are no package

GIB, CONTEXT = 2**30, 2**29
H100 = Device(torch.device("cuda"), "H100", (9, 0), 132, 80 * GIB, 80 * GIB - CONTEXT)
LLAMA_8B = ModelConfig(
    architecture="llama", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336, vocab=128_256,
    max_positions=131_072, rope_theta=500_000.0, norm_eps=1e-5, tied_embeddings=False, eos_token_ids=(128_001,),
)  # fmt: skip
GEMMA = dataclasses.replace(
    LLAMA_8B, architecture="gemma3", layers=26, hidden=1152, heads=4, kv_heads=1, head_dim=256, intermediate=6912,
    vocab=262_144, max_positions=32_768, tied_embeddings=True, local_rope_theta=10_000.0, windows=(512, None) * 13,
    output_norms=True, qk_norm="head",
)  # fmt: skip
MOE = dataclasses.replace(
    LLAMA_8B, layers=48, hidden=2048, kv_heads=4, intermediate=6144, vocab=151_936, qk_norm="head",
    experts=Experts(count=128, chosen=8, intermediate=768), parts=(LayerParts(feed_forward="experts"),) * 48,
)  # fmt: skip
FEW_EXPERTS = dataclasses.replace(
    LLAMA_8B, layers=4, experts=Experts(count=8, chosen=2, intermediate=14_336, shared=1024),
    parts=(LayerParts(), *(LayerParts(feed_forward="experts"),) * 3),
)  # fmt: skip
DEEPSEEK = dataclasses.replace(
    LLAMA_8B, architecture="deepseek_v2", layers=27, hidden=2048, heads=16, kv_heads=1, head_dim=192,
    intermediate=10_944, vocab=102_400, max_positions=163_840, rotary_dim=64, latent=LatentAttention(512, 128, 64, 128),
)  # fmt: skip
MINICPM3 = dataclasses.replace(
    DEEPSEEK, layers=62, hidden=2560, heads=40, head_dim=96, intermediate=6400, vocab=73_448, max_positions=32_768,
    rotary_dim=32, latent=LatentAttention(256, 64, 32, 64, query_rank=768),
)  # fmt: skip
COMMAND_R = dataclasses.replace(
    LLAMA_8B, architecture="cohere", layers=40, hidden=8192, heads=64, kv_heads=64, intermediate=22_528, vocab=256_000,
    tied_embeddings=True, parallel=True, shared_norm=True, layer_norm=True,
)  # fmt: skip
GPT2 = dataclasses.replace(
    LLAMA_8B, architecture="gpt2", layers=12, hidden=768, heads=12, kv_heads=12, head_dim=64, intermediate=3072,
    vocab=50_257, max_positions=1024, tied_embeddings=True, layer_norm=True, gated=False, learned_positions=1024,
    rotated=(False,) * 12,
)  # fmt: skip
PRUNED = dataclasses.replace(
    LLAMA_8B, architecture="deci", layers=4,
    parts=(
        LayerParts(kv_heads=4, intermediate=4096), LayerParts(attention=False), LayerParts(feed_forward="none"),
        LayerParts(),
    ),
)  # fmt: skip
PART = {"q4_k": (256, 144), "q6_k": (256, 210), "bf16": (1, 2)}


def weights_of(config: ModelConfig, stored: Format) -> Weights:
    """Weights in memory that is never written."""
    step, size = PART[stored]

    def matrix(rows: int, columns: int) -> Tensor:
        if stored == "bf16":
            return Tensor(stored, (rows, columns), np.empty((rows, columns), np.uint16))
        return Tensor(stored, (rows, columns), np.empty((rows, columns // step * size), np.uint8))

    def norm(count: int) -> Tensor:
        return Tensor("f32", (count,), np.empty(count, np.float32))

    def layer(number: int) -> LayerWeights:
        mixed = config.part(number).feed_forward == "experts"
        return layer_of(config, matrix, norm, experts_of(config, matrix, matrix) if mixed else None, number)

    layers = tuple(map(layer, range(config.layers)))
    embedding = matrix(config.vocab, config.hidden)
    head = embedding if config.tied_embeddings else matrix(config.vocab, config.hidden)
    positions = matrix(config.learned_positions, config.hidden) if config.learned_positions else None
    return Weights(embedding, layers, norm(config.hidden), head, positions=positions)


def act_order(config: ModelConfig) -> Weights:
    """Weights of a GPTQ checkpoint with sorted columns: only their shapes are known."""
    base = weights_of(config, "bf16")

    def sorted_matrix(matrix: Matrix) -> GroupedMatrix:
        rows, columns = matrix.shape
        order = np.arange(columns, dtype=np.int32)
        read = lambda *_: pytest.fail("no weight is read")  # noqa: E731
        return GroupedMatrix("gptq", (rows, columns), Grouping("int4", 128, minimum=True), read, order=order)

    names = ("q", "k", "v", "o", "gate", "up", "down")
    layers = tuple(
        dataclasses.replace(layer, **{name: sorted_matrix(getattr(layer, name)) for name in names})
        for layer in base.layers
    )
    return dataclasses.replace(base, layers=layers)


def fp8_blocks(config: ModelConfig) -> Weights:
    """Weights of an FP8 checkpoint with blocks of 128 columns."""
    base = act_order(config)
    names = ("q", "k", "v", "o", "gate", "up", "down")

    def blocks(matrix: GroupedMatrix) -> GroupedMatrix:
        return dataclasses.replace(matrix, format="fp8", grouping=Grouping("fp8", 128), order=None)

    layers = tuple(
        dataclasses.replace(layer, **{name: blocks(getattr(layer, name)) for name in names}) for layer in base.layers
    )
    return dataclasses.replace(base, layers=layers)


Stored = Format | Literal["act-order", "fp8 blocks"]


def model_of(config: ModelConfig, stored: Stored) -> Weights:
    if stored == "act-order":
        return act_order(config)
    return fp8_blocks(config) if stored == "fp8 blocks" else weights_of(config, stored)


def spec(engine: dict[str, Any], ranks: int = 1) -> Spec:
    shared = {"engine": {"parallelism": {"tensor": ranks}, **engine}, "resources": {"gpu": {"count": ranks}}}
    return Spec.model_validate({"model": {"uri": "hf://org/model"}, **shared})


def report(config: ModelConfig, weights: Weights) -> ModelReport:
    tables = pool_layout(config).kinds
    return ModelReport(max_length=config.max_positions, kv_tables=tables, gpu=gpu_report(weights, config))


def expect(asked: Spec, found: ModelReport, device: Device) -> GpuEstimate:
    card = Card(device.name, device.total, asked.resources.gpu.count)
    result = estimate(asked, found, card)
    assert result is not None
    return result


def planned(settings: EngineSettings, needs: MemoryNeeds, device: Device) -> tuple[int, int, int]:
    """Bytes of the KV pool, and the numbers of sequences and tokens of a step, as `build_cuda` decides them."""
    sizes = fit(
        settings,
        GPU_PROFILES[settings.profile],
        max_positions=needs.config.max_positions,
        token_bytes=needs.block // needs.block_size * len(pool_layout(needs.config).groups),
        block_size=needs.block_size,
        tables=pool_layout(needs.config).kinds,
        steps_ahead=1,
        room=lambda rows, tokens: device.free - needs.beside_pool(rows, tokens),
    )
    return sizes.kv_memory, sizes.max_running, sizes.max_batched_tokens


@pytest.mark.parametrize(
    ("config", "stored", "ranks", "engine"),
    [
        (LLAMA_8B, "bf16", 1, {}),
        (LLAMA_8B, "bf16", 1, {"adapters": {"maxLoaded": 8, "maxRank": 20}}),
        (GEMMA, "q4_k", 1, {"adapters": {"maxLoaded": 64, "maxRank": 16}, "profile": "throughput"}),
        (LLAMA_8B, "bf16", 1, {"quantization": "fp8", "kv": {"dtype": "fp8"}}),
        (LLAMA_8B, "bf16", 2, {"profile": "throughput", "maxModelLen": 8192}),
        (LLAMA_8B, "q4_k", 1, {"profile": "latency", "kv": {"dtype": "int8", "blockSize": 32}}),
        (LLAMA_8B, "bf16", 4, {"adapters": {"maxLoaded": 16, "maxRank": 64}}),
        (GEMMA, "bf16", 4, {"adapters": {"maxLoaded": 3, "maxRank": 8}, "quantization": "fp8"}),
        (DEEPSEEK, "bf16", 8, {"adapters": {"maxLoaded": 64, "maxRank": 128}, "maxModelLen": 8192}),
        (LLAMA_8B, "q6_k", 8, {"scheduler": {"maxRunningRequests": 100, "maxBatchedTokens": 700}}),
        (LLAMA_8B, "q4_k", 1, {"dtype": "float32", "maxModelLen": 2000}),
        (LLAMA_8B, "act-order", 1, {}),
        (LLAMA_8B, "act-order", 1, {"dtype": "bfloat16"}),
        (LLAMA_8B, "fp8 blocks", 1, {"profile": "throughput"}),
        (MOE, "bf16", 1, {}),
        (MOE, "q4_k", 1, {"adapters": {"maxLoaded": 8, "maxRank": 64}, "profile": "throughput"}),
        (FEW_EXPERTS, "bf16", 1, {"adapters": {"maxLoaded": 3, "maxRank": 16}}),
        (MOE, "q4_k", 1, {"profile": "throughput"}),
        (FEW_EXPERTS, "bf16", 4, {"profile": "throughput", "quantization": "fp8"}),
        (FEW_EXPERTS, "bf16", 1, {"profile": "latency", "maxModelLen": 5000}),
        (GEMMA, "bf16", 1, {"kv": {"memory": "4Gi"}}),
        (GEMMA, "bf16", 4, {"scheduler": {"chunkedPrefill": False}, "maxModelLen": 6000}),
        (DEEPSEEK, "bf16", 1, {}),
        (DEEPSEEK, "bf16", 4, {"profile": "throughput", "maxModelLen": 8192}),
        (MINICPM3, "q4_k", 1, {"kv": {"blockSize": 32}}),
        (MINICPM3, "bf16", 8, {"quantization": "fp8"}),
        (COMMAND_R, "q4_k", 1, {}),
        (COMMAND_R, "bf16", 4, {"profile": "throughput"}),
        (GPT2, "bf16", 1, {}),
        (PRUNED, "bf16", 1, {"maxModelLen": 8192}),
        (GPT2, "q4_k", 1, {"quantization": "fp8"}),
    ],
)
def test_every_part_is_as_planned(config: ModelConfig, stored: Stored, ranks: int, engine: dict[str, Any]) -> None:
    weights, asked = model_of(config, stored), spec(engine, ranks)
    expected, settings = expect(asked, report(config, weights), H100), asked.engine.settings
    own, part = shard(config, weights, rank=0, size=ranks)
    needs = memory_needs(settings, own, part, H100, dataclasses.replace(ALONE, size=ranks))
    pool, rows, tokens = planned(settings, needs, H100)
    assert expected.weights == needs.weights
    assert needs.adapters.bytes <= expected.adapters <= 1.01 * needs.adapters.bytes + 2**17
    assert (expected.block, expected.block_size) == (needs.block, needs.block_size)
    # Never less than the server takes, and little more.
    working, loaded = needs.working(rows, tokens), needs.weights + needs.adapters.bytes
    assert working <= expected.working <= 1.02 * working + 2**20
    assert expected.graphs + expected.reserve == needs.beside_pool(rows, tokens) - loaded - working + CONTEXT
    assert expected.kv <= pool
    assert expected.kv == pytest.approx(pool, rel=0.002)


NARROW = dataclasses.replace(LLAMA_8B, layers=2, hidden=512, heads=8, kv_heads=4, head_dim=64, intermediate=1024)


@pytest.mark.parametrize(("config", "stored", "ranks"), [(NARROW, "bf16", 1), (NARROW, "bf16", 4), (GPT2, "bf16", 1)])
@pytest.mark.parametrize("added", [1, 512])
def test_room_for_added_tokens_is_expected(config: ModelConfig, stored: Format, ranks: int, added: int) -> None:
    weights = weights_of(config, stored)
    asked = spec({"adapters": {"maxLoaded": 16, "maxRank": 32, "maxAddedTokens": added}}, ranks)
    found = msgspec.structs.replace(report(config, weights), vocab=config.vocab, hidden=config.hidden)
    expected, settings = expect(asked, found, H100), asked.engine.settings
    own, part = shard(*with_added_ids(config, weights, added), rank=0, size=ranks)
    needs = memory_needs(settings, own, part, H100, dataclasses.replace(ALONE, size=ranks))
    _, rows, tokens = planned(settings, needs, H100)
    working = needs.working(rows, tokens)
    assert needs.weights <= expected.weights <= 1.01 * needs.weights + 2**23
    assert needs.adapters.bytes <= expected.adapters <= 1.02 * needs.adapters.bytes + 2**17
    assert working <= expected.working <= 1.02 * working + 2**20


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 33, 64, 100, 256, 512])
def test_graphs_are_counted_as_they_are_captured(rows: int) -> None:
    for tokens in (1, 2, 16, 17, 20, 64, 300, 512, 513, 700, 1000, 2048, 2049, 8192):
        sizes = graph_sizes(StepLimits(tokens, rows, 4096, 16, 132, 1000))
        assert graph_count(rows, tokens) == sum(map(len, sizes))


def tiny_report() -> tuple[ModelReport, LoadedModel]:
    config, weights = tiny_model()
    text = TextModel("tiny", Path("tiny"), config, lambda: pytest.fail("no tokenizer is needed"))
    return report(config, weights), LoadedModel(text, config, weights)


def test_gpus_that_count_are_those_on_which_a_server_starts() -> None:
    assert (LEAST_MAJOR, 0) == MIN_CAPABILITY


def test_a_backend_takes_what_was_expected() -> None:
    found, model = tiny_report()
    device = Device(torch.device("cpu"), "a card", (9, 0), 132, 2 * GIB, 2 * GIB - CONTEXT)
    engine = {"scheduler": {"maxRunningRequests": 3, "maxBatchedTokens": 20}, "dtype": "float32", "maxModelLen": 40}
    asked = spec(engine)
    built = build_cuda(asked.engine.settings, model, device)
    expected = expect(asked, found, device)
    assert built.memory is not None
    assert (expected.weights, expected.kv) == (built.memory.weights, built.memory.kv_pool)
    assert expected.kv_tokens == built.sizes.num_blocks * built.sizes.block_size
    assert built.memory.activations <= expected.working <= built.memory.activations + 2**21


def test_a_model_is_refused_where_the_server_would_refuse_it() -> None:
    found, model = tiny_report()
    asked = spec({"kv": {"memory": "1Gi"}})
    for total, fits in ((GIB, False), (4 * GIB, True)):
        device = Device(torch.device("cpu"), "a card", (9, 0), 132, total, total - CONTEXT)
        message = gpu_refusal(asked, found, expect(asked, found, device))
        assert (message == "") == fits
        if not fits:
            with pytest.raises(DeviceError, match="the model needs"):
                build_cuda(asked.engine.settings, model, device)


def test_an_inspection_reads_no_weight_and_finds_what_a_load_finds() -> None:
    found = inspect("smollm2")
    loaded = load_model("smollm2")
    assert isinstance(loaded, LoadedModel)
    assert found.gpu == gpu_report(loaded.weights, loaded.config)
    assert found.format == "Q4_1"
    assert found.quantized
    assert found.file_bytes == loaded.text.path.stat().st_size


def test_a_report_fits_a_termination_message() -> None:
    found = dataclasses.replace(LLAMA_8B, heads=48, kv_heads=48, intermediate=5040 * 16, layers=2, vocab=2**20)
    data = encode_inspection(
        ModelReport(
            revision="a" * 64, path="p" * 255, architecture="a" * 30, parameters=2**40, format="f" * 128,
            weights=dict.fromkeys(("auto", "bfloat16", "float32", "int8"), 2**40), kv_elements_per_token=2**30,
            max_length=2**30, token_bytes=2**30, row_bytes=2**30, gpu=gpu_report(weights_of(found, "bf16"), found),
        )
    )  # fmt: skip
    assert len(json.loads(data)["gpu"]["shares"]) > 7
    assert len(data) <= 3500
