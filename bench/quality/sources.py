"""The quantized models that are compared: rounded here, by `octavo-server quantize`, or by llama.cpp."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.lib.processes import CACHE, LLAMA, ROOT
from bench.lib.rounding import NF4, Floats, Round, codes, fp8, half_quadratic, integers, mxfp4, nvfp4
from octavo_inference.checkpoints.resolve import find_model
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.weights import LayerWeights, Matrix, Weights, dequantize

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
_FOLDER = CACHE / "quality"
_QUANTIZE = (
    "import sys, llama_cpp as l; p = l.llama_model_quantize_default_params(); p.allow_requantize = True; "
    "p.nthread = 2; p.ftype = int(sys.argv[3]); "
    "sys.exit(l.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), p))"
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A format to compare. `bits` of a weight in the checkpoint, scales included, where they follow from the format."""

    name: str
    weights: Callable[[LoadedModel], Weights]
    bits: float | None = None
    missing: str = ""


def variants() -> list[Variant]:
    """All of them; those whose tool is absent say what is `missing`."""
    return [
        *(Variant(name, _rounded(how), bits) for name, (how, bits) in _ROUNDED.items()),
        *(Variant(f"quantize {' '.join(flags)}", _quantized(flags)) for flags in _COMMANDS),
        *(_llama(name, number) for name, number in _LLAMA_TYPES.items()),
    ]


# How, and bits of a weight in a checkpoint: fp16 scales, zero points of as many bits as a value.
_ROUNDED: dict[str, tuple[Round, float]] = {
    "int8, a scale per row": (integers(8, 0, minimum=False), 8.0),
    "int4, 32, symmetric": (integers(4, 32, minimum=False), 4.5),
    "int4, 64, symmetric": (integers(4, 64, minimum=False), 4.25),
    "int4, 64, zero points": (integers(4, 64, minimum=True), 4.3125),
    "HQQ int4, 64": (half_quadratic(4, 64), 4.5),
    "NF4, 64": (codes(NF4, 64), 4.5),
    "MXFP4": (mxfp4, 4.25),
    "NVFP4": (nvfp4, 4.5),
    "FP8, a scale per matrix": (fp8(0, 0), 8.0),
    "FP8, a scale per row": (fp8(1, 0), 8.0),
    "FP8, blocks of 128 x 128": (fp8(128, 128), 8.0),
}
# The built-in model's rows are whole groups of 64.
_COMMANDS = (("--method", "gptq"), ("--method", "awq"))
# llama_ftype of llama.h. Without TQ1_0 and TQ2_0, which are for models trained in three values: others are ruined.
_LLAMA_TYPES = {
    "Q2_K": 10,
    "Q3_K_M": 12,
    "Q4_K_M": 15,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "Q8_0": 7,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "IQ3_S": 26,
    "IQ3_XXS": 23,
}


def with_matrices(weights: Weights, change: Callable[[Floats], Matrix]) -> Weights:
    """The weights with the matrices of all layers rounded; embedding and head stay as they are."""

    def rounded(layer: LayerWeights) -> LayerWeights:
        changed: dict[str, Any] = {name: change(dequantize(getattr(layer, name))) for name in MATRICES}
        return replace(layer, **changed)

    return replace(weights, layers=tuple(map(rounded, weights.layers)))


def _rounded(how: Round) -> Callable[[LoadedModel], Weights]:
    return lambda model: with_matrices(model.weights, how)


def _quantized(flags: tuple[str, ...]) -> Callable[[LoadedModel], Weights]:
    """What the command writes, below the benchmarks' cache."""

    def weights(_: LoadedModel) -> Weights:
        folder = _FOLDER / "-".join(flag.strip("-") for flag in flags)
        if not (folder / "config.json").exists():
            command = [sys.executable, "-m", "octavo_inference", "quantize", "smollm2", str(folder), *flags]
            subprocess.run(command, check=True, cwd=ROOT)
        return _loaded(folder)

    return weights


def _llama(name: str, number: int) -> Variant:
    """A type that llama.cpp quantizes the built-in model to."""

    def weights(_: LoadedModel) -> Weights:
        file = _FOLDER / f"{name}.gguf"
        if not file.exists():
            _FOLDER.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            source = str(find_model("smollm2"))
            command = [str(LLAMA), "-c", _QUANTIZE, source, str(partial), str(number)]
            subprocess.run(command, check=True, capture_output=True)
            partial.rename(file)
        return _loaded(file)

    missing = "" if LLAMA.exists() else f"llama.cpp at {LLAMA}"
    return Variant(f"GGUF {name}", weights, missing=missing)


def _loaded(path: Path) -> Weights:
    model = load_model(str(path))
    assert isinstance(model, LoadedModel)  # noqa: S101 (a decoder that the native kernels know)
    return model.weights
