"""Cost and accuracy of each weight format: bits in memory, speed of the linears, error.

python -m bench.cpu.formats                 # one thread; result in results/formats.json
python -m bench.cpu.formats --scale 8       # an eighth of the weights and of the text, for a quick run

Speed: milliseconds of one core (its CPU time, the least of three rounds) for 100 million weights in matrices of
3,072 x 768, for 1 to 256 rows. Output error: of these products, root mean square against gguf's dequantisation in
float64, relative. KL: divergence of the built-in model's next tokens from float32 with the same weights; gguf
requantises the model's weights to the format, and has no quantiser for the K formats. Formats of groups are
rounded to nearest: in the model's 576 columns, groups of 128 are of 64.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import gguf
import numpy as np
from numpy.typing import NDArray

from bench.lib.host import RESULTS, host
from bench.lib.processes import ROOT
from bench.lib.results import save
from bench.lib.rounding import IQ4, NF4, Round, codes, fp8, integers, mxfp4, nvfp4
from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.library import Kernels, load
from octavo_inference.backends.cpu.native.packing import Packed, Packer, address
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.ggml_dequant import BlockFormat
from octavo_inference.models.weights import Matrix, Tensor, bf16_bits, dequantize

# Formats of groups; 0: a group is a row.
GROUPED: dict[str, Round] = {
    **{f"int4 g{group}": integers(4, group, minimum=False) for group in (32, 64, 128)},
    **{f"int4 zero g{group}": integers(4, group, minimum=True) for group in (16, 32, 64, 128)},
    "iq4_nl": codes(IQ4, 32),
    "mxfp4": mxfp4,
    "nvfp4": nvfp4,
    "nf4": codes(NF4, 64),
    "int8 rows": integers(8, 0, minimum=False),
    "int8 zero g128": integers(8, 128, minimum=True),
    "fp8 rows": fp8(1, 0),
    "fp8 g128": fp8(1, 128),
}
FORMATS: tuple[str, ...] = ("bf16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", *GROUPED)
ROWS = (1, 8, 64, 256)
_BLOCK_BYTES = 48  # Int8Block of int8.h
COLUMNS, WIDTH, MATRICES = 768, 3072, 42
# Bytes of a K block, offsets of its fp16 numbers, and their usual magnitudes for weights of about 0.02.
K_BLOCKS: dict[str, tuple[int, dict[int, float]]] = {
    "q4_k": (144, {0: 2e-4, 2: 1e-3}),
    "q5_k": (176, {0: 1e-4, 2: 1e-3}),
    "q6_k": (210, {208: 2e-5}),
}


def stored(name: str, values: NDArray[np.float32], rng: np.random.Generator) -> Matrix:
    """The values in a format; random blocks in a K format, which gguf cannot quantize to."""
    if name == "bf16":
        return Tensor("bf16", values.shape, bf16_bits(values))
    if name in GROUPED:
        return GROUPED[name](values)
    format_ = cast("BlockFormat", name)
    if name not in K_BLOCKS:
        return Tensor(format_, values.shape, gguf.quants.quantize(values, gguf.GGMLQuantizationType[name.upper()]))
    size, numbers = K_BLOCKS[name]
    blocks = rng.integers(0, 256, (values.size // 256, size), dtype=np.uint8)
    for at, number in numbers.items():
        blocks[:, at : at + 2] = np.array([number], np.float16).view(np.uint8)
    return Tensor(format_, values.shape, blocks.reshape(len(values), -1))


def rows_for(kernels: Kernels, values: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Activations as a kernel reads them: floats, and rounded to 8 bits."""
    given = np.ascontiguousarray(bf16_bits(values) if kernels.info.activation_bytes == 2 else values)
    blocks = np.zeros((len(values), values.shape[1] // 32 * _BLOCK_BYTES), np.uint8)
    kernels.library.octavo_quantize(address(given), *values.shape, address(blocks))
    return given, blocks


def multiply(
    kernels: Kernels,
    team: int,
    matrix: abi.PackedMatrix,
    rows: tuple[NDArray[Any], NDArray[np.uint8]],
    out: NDArray[np.float32],
) -> None:
    """One linear."""
    given, blocks = rows
    kernels.library.octavo_linear(team, matrix, address(given), address(blocks), len(out), address(out))


def linears(kernels: Kernels, name: str, scale: int, rng: np.random.Generator) -> dict[str, Any]:
    """Bits, milliseconds for each number of rows, error."""
    team = kernels.library.octavo_team_create(1)
    packed = Packed()
    tensor = stored(name, rng.standard_normal((WIDTH, COLUMNS), np.float32) * np.float32(0.02), rng)
    packer = Packer(kernels, team, "auto", packed)
    matrices = [packer.matrix((tensor,)) for _ in range(max(2, MATRICES // scale))]
    weights = WIDTH * COLUMNS * len(matrices)
    result: dict[str, Any] = {"bits": packed.size * 8 / weights, "ms": {}}
    for count in ROWS:
        activations = rows_for(kernels, rng.standard_normal((count, COLUMNS), np.float32))
        out = np.empty((count, WIDTH), np.float32)
        used = matrices if count < max(ROWS) else matrices[: len(matrices) // 4 + 1]

        def run(
            given: tuple[NDArray[Any], NDArray[np.uint8]] = activations,
            into: NDArray[np.float32] = out,
            some: list[abi.PackedMatrix] = used,
        ) -> None:
            for matrix in some:
                multiply(kernels, team, matrix, given, into)

        seconds = least(run, 3) * len(matrices) / len(used)
        result["ms"][count] = seconds * 1e3 * 1e8 / weights
    a = rng.standard_normal((64, COLUMNS), np.float32)
    out = np.empty((64, WIDTH), np.float32)
    multiply(kernels, team, matrices[0], rows_for(kernels, a), out)
    exact = a.astype(np.float64) @ exact_values(name, tensor).astype(np.float64).T
    result["error"] = float(np.sqrt(((out - exact) ** 2).mean() / (exact**2).mean()))
    kernels.library.octavo_team_destroy(team)
    return result


def exact_values(name: str, tensor: Matrix) -> NDArray[np.float32]:
    """Dequantize the weights, those of GGUF with gguf's own numpy code."""
    if name == "bf16" or not isinstance(tensor, Tensor):
        return dequantize(tensor)
    values = gguf.quants.dequantize(tensor.data, gguf.GGMLQuantizationType[name.upper()])
    return cast("NDArray[np.float32]", values.reshape(tensor.shape))


def least(run: Callable[[], None], rounds: int) -> float:
    """CPU seconds of the fastest of some runs, after a warm-up run."""
    taken = []
    for _ in range(rounds + 1):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return min(taken[1:])


def divergence(model: LoadedModel, name: str, scale: int) -> float | None:
    """Mean KL of the model in a format to float32 with the same weights, over English text."""
    if name in K_BLOCKS:
        return None
    rng = np.random.default_rng(0)

    def convert(tensor: Matrix) -> Matrix:
        return stored(name, dequantize(tensor), rng)

    matrices = ("q", "k", "v", "o", "gate", "up", "down")
    layers = tuple(
        dataclasses.replace(layer, **cast("dict[str, Any]", {m: convert(getattr(layer, m)) for m in matrices}))
        for layer in model.weights.layers
    )
    head = convert(model.weights.lm_head)
    embedding = head if isinstance(head, Tensor) else model.weights.embedding
    weights = dataclasses.replace(model.weights, layers=layers, embedding=embedding, lm_head=head)
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    tokens = model.text.tokenizer.encode(text).ids[: 256 // scale]
    batch = one_sequence(tokens)

    def log_probabilities(dtype: Literal["auto", "float32"]) -> NDArray[np.float64]:
        backend = CpuBackend.create(
            model.config,
            weights,
            num_blocks=8,
            max_batched_tokens=256,
            max_running=256,
            max_model_len=256,
            dtype=dtype,
            threads=1,
        )
        wide = backend.logits(batch).astype(np.float64)
        wide -= wide.max(-1, keepdims=True)
        return cast("NDArray[np.float64]", wide - np.log(np.exp(wide).sum(-1, keepdims=True)))

    exact, got = log_probabilities("float32"), log_probabilities("auto")
    return float((np.exp(exact) * (exact - got)).sum(-1).mean())


def one_sequence(tokens: list[int]) -> Batch:
    """A prompt with a sample row for each token."""
    count = len(tokens)
    numbers = np.arange(count, dtype=np.int32)
    sample = SampleRows.greedy(numbers, numbers + 1)
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=numbers,
        slots=numbers[None],
        query_start=np.array([0, count], np.int32),
        seq_len=np.array([count], np.int32),
        block_table=np.arange(8, dtype=np.int32)[None, None],
        sample=sample,
    )


def table(formats: dict[str, dict[str, Any]]) -> str:
    """The results in Markdown."""
    lines = [f"| format | bits | {' | '.join(f'{rows} rows' for rows in ROWS)} | output error | KL |", "|---" * 8 + "|"]
    for name, r in formats.items():
        speeds = " | ".join(f"{ms:.1f}" for ms in r["ms"].values())
        kl = "–" if r["kl"] is None else f"{r['kl']:.1e}"
        lines.append(f"| {name.upper()} | {r['bits']:.2f} | {speeds} | {r['error']:.4f} | {kl} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "formats.json")
    arguments = parser.parse_args()
    kernels, model = load(), load_model("smollm2")
    assert isinstance(model, LoadedModel)  # noqa: S101 (a GGUF file)
    rng = np.random.default_rng(0)
    formats: dict[str, dict[str, Any]] = {}
    for name in FORMATS:
        formats[name] = linears(kernels, name, arguments.scale, rng)
        formats[name]["kl"] = divergence(model, name, arguments.scale)
    print(table(formats))
    record = {"host": host(), "variant": kernels.variant, "scale": arguments.scale, "formats": formats}
    save(arguments.output, record)


if __name__ == "__main__":
    main()
