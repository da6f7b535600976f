"""Quantizes a GGUF file into another one, in ggml's formats: metadata and all other tensors stay as they are."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import gguf
import numpy as np

from octavo_inference.checkpoints.gguf import GgufTensor, read_gguf
from octavo_inference.common.errors import SettingsError
from octavo_inference.model_loader import LoadedModel
from octavo_inference.models.weights import dequantize, required
from octavo_inference.tools.quantize import decoder
from octavo_inference.tools.quantize.decoder import Floats, layer_values, release_layer
from octavo_inference.tools.quantize.layer import Method
from octavo_inference.tools.quantize.progress import progress
from octavo_inference.tools.quantize.quality import OutputHead, compare
from octavo_inference.tools.quantize.recipe import Format, Recipe, grids_of, mean_bits
from octavo_inference.tools.quantize.report import QuantizedModel
from octavo_inference.tools.quantize.run import embedded, require_finite
from octavo_inference.tools.quantize.stages import STAGES
from octavo_inference.tools.quantize.text import Windows

# Columns of a block of all these formats.
BLOCK = 32
_MATRIX = re.compile(r"blk\.\d+\.(attn_(q|k|v|qkv|output)|ffn_(gate|up|down))\.weight")
_FILE_TYPES = {"Q4_0": "MOSTLY_Q4_0", "Q4_1": "MOSTLY_Q4_1", "Q8_0": "MOSTLY_Q8_0"}
# Of the file, not of the model: the writer has its own.
_OWN = ("GGUF.", "split.", "general.architecture", "general.file_type", "general.quantization_version")
_PIECE = 4 << 20  # elements that are rounded at a time


def gguf_recipe(format_: Format, method: Method | None, group: str, *, zero_points: bool, keep: str) -> Recipe:
    """The recipe of a command line. Raises `SettingsError` for one that ggml has no format for."""
    if format_ == "fp8":
        raise SettingsError(
            "--format: fp8, and GGUF has no such format: choose int4 or int8, or name a folder", "--format"
        )
    if method not in {None, "rtn"}:
        raise SettingsError(
            f"--method: {method} is for folders, and TARGET is a GGUF file: leave --method out, or name a folder",
            "--method",
        )
    if group not in {"auto", str(BLOCK)}:
        raise SettingsError(
            f"--group-size: {group}, and blocks of GGUF have {BLOCK} columns: leave --group-size out, or name a folder",
            "--group-size",
        )
    if keep != "none":
        raise SettingsError("--keep: is for folders, and TARGET is a GGUF file: leave --keep out", "--keep")
    if zero_points and format_ != "int4":
        raise SettingsError(
            f"--zero-points: for --format int4, and the format is {format_}: leave --zero-points out", "--zero-points"
        )
    return Recipe(format_, "rtn", BLOCK, zero_points)


def _kind(recipe: Recipe) -> gguf.GGMLQuantizationType:
    name = "Q8_0" if recipe.format == "int8" else "Q4_1" if recipe.zero_points else "Q4_0"
    return gguf.GGMLQuantizationType[name]


def quantize_gguf(
    model: LoadedModel,
    target: Path,
    recipe: Recipe,
    windows: Windows,
    out: TextIO,
    clock: Callable[[], float] = time.monotonic,
) -> QuantizedModel:
    """Write the file and measure it. Raises `SettingsError` for a source or target that cannot be used, OSError."""
    kind = _kind(recipe)
    if not model.text.path.is_file():
        raise SettingsError(f"{target}: a GGUF file needs a GGUF source, and {model.text.path} is a folder", "TARGET")
    if target.exists():
        raise SettingsError(f"{target}: exists already: name another file, or remove it", "TARGET")
    began, config, weights = clock(), model.config, model.weights
    grids = grids_of(config, recipe)
    states = {name: embedded(config, weights.embedding, windows.held_out) for name in ("before", "after")}
    for number in progress(range(config.layers), "quantize", config.layers, out):
        values = layer_values(weights.layers[number])
        require_finite(model, number, values)
        matrices = [name for stage in STAGES if stage.name in grids[number] for name in stage.matrices]
        rounded = {**values, **{name: _rounded(values[name], kind) for name in matrices}}
        for name, layer in (("before", values), ("after", rounded)):
            states[name] = np.stack([decoder.forward(config, number, layer, window) for window in states[name]])
        release_layer(weights.layers[number])
    unfinished = target.with_name(target.name + ".part")
    _write(model.text.path, unfinished, kind)
    unfinished.replace(target)
    output = OutputHead(dequantize(required(weights.final_norm)), weights.lm_head)
    quality = compare(config, states["before"], states["after"], (output, output), windows.held_out)
    # A block has a float16 scale, and with zero points a float16 minimum.
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    bits = mean_bits(config, grids, lambda *_: 8 * size / per_block)
    return QuantizedModel(recipe, grids, bits, quality, target.stat().st_size, clock() - began)


def _rounded(values: Floats, kind: gguf.GGMLQuantizationType) -> Floats:
    result: Floats = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    return result


def _write(source: Path, target: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Copy a file, with the matrices of its layers in another format."""
    reader, file = gguf.GGUFReader(source), read_gguf(source)
    writer = gguf.GGUFWriter(target, str(file.metadata["general.architecture"]))
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[kind.name]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for field in reader.fields.values():
        if not field.name.startswith(_OWN):
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if array else None)
    for tensor in file.tensors.values():
        format_ = kind if _converted(tensor) else gguf.GGMLQuantizationType(tensor.type_id)
        per_block, size = gguf.GGML_QUANT_SIZES[format_]
        row = tensor.shape[-1] // per_block * size
        bytes_ = row * len(tensor.data)
        # The writer takes the shape in bytes of a tensor of blocks, and in elements of others.
        blocks = format_ not in {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16}
        shape = (*tensor.shape[:-1], row) if blocks else tensor.shape
        type_ = np.dtype(np.uint8 if blocks else np.float32 if format_ == gguf.GGMLQuantizationType.F32 else np.float16)
        writer.add_tensor_info(tensor.name, shape, type_, bytes_, raw_dtype=format_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in file.tensors.values():
        writer.write_tensor_data(_requantized(tensor, kind) if _converted(tensor) else tensor.data)
    writer.close()


def _converted(tensor: GgufTensor) -> bool:
    return _MATRIX.fullmatch(tensor.name) is not None and tensor.shape[-1] % BLOCK == 0


def _requantized(tensor: GgufTensor, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    step = max(1, _PIECE // tensor.shape[-1])
    format_ = gguf.GGMLQuantizationType(tensor.type_id)
    pieces = (tensor.data[at : at + step] for at in range(0, len(tensor.data), step))
    return np.concatenate([gguf.quants.quantize(gguf.quants.dequantize(piece, format_), kind) for piece in pieces])
