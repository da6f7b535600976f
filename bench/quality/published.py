"""The published formats: which files have them, and which tests read them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.lib.rounding import E2M1, NF4
from octavo_inference.models.ggml_dequant import BlockFormat
from octavo_inference.models.ggml_groups import GROUPED
from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups
from octavo_inference.models.weights import Matrix, Tensor

_ROWS, _COLUMNS = 64, 1024


@dataclass(frozen=True, slots=True)
class Published:
    """A format: an example of its matrices, its sources, the test that reads it, and its figures' name, if any."""

    name: str
    matrix: Matrix
    sources: str
    test: str
    figures: tuple[str, ...] = field(default_factory=tuple)


def published() -> list[Published]:
    """All of them: of safetensors first, then of GGUF."""
    return [*_safetensors(), *_gguf()]


def _safetensors() -> list[Published]:
    methods = "test_quantized_methods.py"

    def of(name: str, grouping: Grouping, sources: str, test: str, *figures: str) -> Published:
        return Published(name, _grouped(grouping), sources, f"tests/unit/model/{test}", figures)

    def four(group: int, *, minimum: bool = False) -> Grouping:
        return Grouping("int4", group, minimum=minimum)

    int4 = "compressed-tensors, GPTQ, AutoRound"
    return [
        of("int4, groups of 32", four(32), int4, methods, "int4, 32, symmetric"),
        of(
            "int4, groups of 64",
            four(64),
            int4,
            methods,
            "int4, 64, symmetric",
            "quantize --method gptq",
            "quantize --method awq",
        ),
        of("int4, groups of 128", four(128), int4, methods),
        of(
            "int4, groups of 64, zero points",
            four(64, minimum=True),
            "compressed-tensors, GPTQ, AWQ, AutoRound, HQQ",
            methods,
            "int4, 64, zero points",
            "HQQ int4, 64",
        ),
        of("int4, groups of 128, zero points", four(128, minimum=True), "the same", methods),
        Published(
            "int4 with act-order",
            _grouped(four(128), ordered=True),
            "GPTQ, compressed-tensors",
            "tests/unit/model/test_quantized_gptq.py",
        ),
        of("NF4", Grouping("code4", 64, levels=NF4), "bitsandbytes", "test_quantized_bitsandbytes.py", "NF4, 64"),
        of(
            "MXFP4",
            Grouping("code4", 32, levels=E2M1),
            "MXFP4, Quark, compressed-tensors",
            "test_quantized_mxfp4.py",
            "MXFP4",
        ),
        of(
            "NVFP4",
            Grouping("code4", 16, levels=E2M1),
            "ModelOpt, compressed-tensors",
            "test_quantized_modelopt.py",
            "NVFP4",
        ),
        of(
            "int8, a scale for a row",
            Grouping("int8", _COLUMNS),
            "compressed-tensors, bitsandbytes, Quark",
            "test_quantized_compressed_tensors.py",
            "int8, a scale per row",
        ),
        of("int8, groups of 128", Grouping("int8", 128), "compressed-tensors, GPTQ, HQQ", methods),
        of("int8, groups, zero points", Grouping("int8", 128, minimum=True), "GPTQ, HQQ", methods),
        of(
            "FP8, a scale for a matrix or row",
            Grouping("fp8", _COLUMNS),
            "FP8, compressed-tensors, ModelOpt, Quark",
            "test_quantized_fp8.py",
            "FP8, a scale per matrix",
            "FP8, a scale per row",
        ),
        of(
            "FP8, tiles of 128 × 128",
            Grouping("fp8", 128),
            "FP8, compressed-tensors, ModelOpt",
            "test_quantized_fp8.py",
            "FP8, blocks of 128 x 128",
        ),
    ]


def _gguf() -> list[Published]:
    kept: tuple[BlockFormat, ...] = ("q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0")
    figures = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q3_K": "Q3_K_M"}
    names = [*((name.upper(), Tensor(name, (_ROWS, _COLUMNS), np.zeros((_ROWS, 4), np.uint8))) for name in kept)]
    matrices: list[tuple[str, Matrix]] = [*names, *((name, _grouped(f.grouping)) for name, f in GROUPED.items())]
    return [
        Published(name, matrix, "GGUF", _gguf_test(name), (f"GGUF {figures.get(name, name)}",))
        for name, matrix in matrices
    ]


def _gguf_test(name: str) -> str:
    return f"tests/unit/model/{'test_gguf_formats.py' if name in GROUPED else 'test_load.py'}"


def _grouped(grouping: Grouping, *, ordered: bool = False) -> GroupedMatrix:
    def read(start: int, end: int) -> Groups:
        scale = np.ones((end - start, _COLUMNS // grouping.group), np.float32)
        return Groups(np.zeros((end - start, _COLUMNS), np.uint8), scale, scale if grouping.minimum else None)

    order = np.arange(_COLUMNS, dtype=np.int32)[::-1].copy() if ordered else None
    return GroupedMatrix("example", (_ROWS, _COLUMNS), grouping, read, (), order)
