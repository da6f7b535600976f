"""Quantizes a loaded model into a folder, a layer at a time, and measures the result."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.errors import ModelError, SettingsError
from octavo_inference.model_loader import LoadedModel
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Tensor, dequantize, required
from octavo_inference.tools.quantize import decoder, state
from octavo_inference.tools.quantize.declared import quantization_config
from octavo_inference.tools.quantize.decoder import Floats, layer_values, release_layer
from octavo_inference.tools.quantize.folder import shard_name, source_config, write_index, write_texts
from octavo_inference.tools.quantize.grid import Grid
from octavo_inference.tools.quantize.half import half_tensor, store_tensor
from octavo_inference.tools.quantize.layer import quantize_layer
from octavo_inference.tools.quantize.progress import progress
from octavo_inference.tools.quantize.quality import OutputHead, Quality, compare
from octavo_inference.tools.quantize.recipe import Grids, Recipe, grids_of, matrix_elements, weight_bits
from octavo_inference.tools.quantize.report import QuantizedModel, report
from octavo_inference.tools.quantize.sensitivity import divergences, most_sensitive, with_kept
from octavo_inference.tools.quantize.state import State
from octavo_inference.tools.quantize.stored import PREFIX, layer_tensors, norm, tensor_names, write_shard
from octavo_inference.tools.quantize.text import Windows

# Tokens with which `--keep auto` measures: every stage of every layer is a model of its own then.
_SENSITIVITY_TOKENS = 256


def quantize(
    model: LoadedModel,
    target: Path,
    recipe: Recipe,
    windows: Windows,
    out: TextIO,
    clock: Callable[[], float] = time.monotonic,
) -> QuantizedModel:
    """Write the quantized model, or continue an interrupted run. Progress goes to `out`.

    Raises `ModelError` for weights that are not finite, `SettingsError` for a target that cannot be used, OSError.
    """
    config = model.config
    described = source_config(model)
    grids = grids_of(config, recipe)
    identity = {**asdict(recipe), "source": config.digest, "text": windows.digest}
    with state.opened(target, identity) as run:
        _require_space(target, config, grids, windows, run.done)
        began = clock() - run.seconds
        _start(model, target, windows, run, calibrates=recipe.method != "rtn")
        if recipe.keep == "auto":
            if run.kept is None:
                run.kept = _sensitive(model, recipe, grids, windows, out)
                state.save(target, run)
            grids = with_kept(grids, run.kept, recipe.finer)
        for number in progress(range(run.done, config.layers), "quantize", config.layers, out, done=run.done):
            _layer(model, target, recipe, grids[number], run)
            run.done, run.seconds = number + 1, clock() - began
            state.save(target, run)
        quality = _measure(model, windows, run)
        result = QuantizedModel(recipe, grids, weight_bits(config, grids), quality, _size(target), clock() - began)
        write_texts(target, model, {**described, "quantization_config": quantization_config(config, grids)})
        write_index(target, _places(target, config), result.bytes_)
        state.replace_text(target / state.REPORT, json.dumps(report(model, result), indent=1))
        state.remove(target)
    return result


def _start(model: LoadedModel, target: Path, windows: Windows, run: State, *, calibrates: bool) -> None:
    """Write what surrounds the layers, and look up the embeddings of the text, unless an earlier run has done so."""
    if run.hidden:
        return
    config, weights = model.config, model.weights
    embedding = half_tensor(weights.embedding)
    tensors = {
        f"{PREFIX}embed_tokens.weight": store_tensor(embedding),
        f"{PREFIX}norm.weight": norm(config, dequantize(required(weights.final_norm))),
    }
    if not config.tied_embeddings:
        tensors["lm_head.weight"] = store_tensor(half_tensor(weights.lm_head))
    write_shard(target / shard_name(1, config.layers + 1), tensors)
    calibration = windows.calibration if calibrates else windows.calibration[:0]
    run.hidden = {
        "calibration": embedded(config, embedding, calibration),
        "before": embedded(config, weights.embedding, windows.held_out),
        "after": embedded(config, embedding, windows.held_out),
    }


def embedded(config: ModelConfig, embedding: Tensor, tokens: NDArray[np.int64]) -> Floats:
    """The hidden states before the first layer, [windows, tokens, hidden]."""
    rows = embedding.data[tokens.reshape(-1)]
    values = dequantize(Tensor(embedding.format, (len(rows), config.hidden), rows))
    return values.reshape(*tokens.shape, config.hidden) * np.float32(config.embedding_scale)


def _layer(model: LoadedModel, target: Path, recipe: Recipe, grids: dict[str, Grid], run: State) -> None:
    """Quantize the next layer and write its shard. Moves the hidden states to after it."""
    config, number = model.config, run.done
    values = layer_values(model.weights.layers[number])
    require_finite(model, number, values)
    layer, run.hidden["calibration"] = quantize_layer(
        config,
        number,
        values,
        run.hidden["calibration"],
        grids,
        recipe.method,
        by_activation=recipe.by_activation,
    )
    write_shard(target / shard_name(number + 2, config.layers + 1), layer_tensors(config, number, layer))
    for name, its in (("before", values), ("after", layer.values)):
        run.hidden[name] = np.stack([decoder.forward(config, number, its, window) for window in run.hidden[name]])
    release_layer(model.weights.layers[number])


def require_finite(model: LoadedModel, number: int, values: decoder.Layer) -> None:
    """Raises `ModelError` for a layer with NaN or infinity."""
    for name, array in values.items():
        if not np.isfinite(array).all():
            raise ModelError(
                f"{model.text.path}: {name} of layer {number} has a value that is not finite: the file is damaged"
            )


def _sensitive(
    model: LoadedModel, recipe: Recipe, grids: Grids, windows: Windows, out: TextIO
) -> list[tuple[int, str]]:
    tokens = windows.calibration[0, :_SENSITIVITY_TOKENS]
    hidden = embedded(model.config, model.weights.embedding, tokens)
    found: dict[tuple[int, str], float] = {}
    steps = divergences(model.config, model.weights, grids, tokens, hidden, found)
    for _ in progress(steps, "sensitivity", model.config.layers, out):
        pass
    return most_sensitive(model.config, grids, recipe.finer, found, recipe.keep_bits)


def _measure(model: LoadedModel, windows: Windows, run: State) -> Quality:
    weights = model.weights
    final_norm = dequantize(required(weights.final_norm))
    before = OutputHead(final_norm, weights.lm_head)
    after = OutputHead(final_norm, half_tensor(weights.lm_head))
    return compare(model.config, run.hidden["before"], run.hidden["after"], (before, after), windows.held_out)


def _size(target: Path) -> int:
    return sum(path.stat().st_size for path in target.glob("*.safetensors"))


def _places(target: Path, config: ModelConfig) -> dict[str, str]:
    """The file of each tensor."""
    files = [shard_name(number, config.layers + 1) for number in range(1, config.layers + 2)]
    return {tensor: name for name in files for tensor in tensor_names(target / name)}


def _require_space(target: Path, config: ModelConfig, grids: Grids, windows: Windows, done: int) -> None:
    """Raises `SettingsError` if what is left to write does not fit on the disk."""
    layers = weight_bits(config, grids) / 8 * matrix_elements(config) * (config.layers - done)
    heads = 0 if done else 2 * config.vocab * config.hidden * (1 if config.tied_embeddings else 2)
    # Hidden states of three sets, those of the last two layers.
    states = 2 * 4 * config.hidden * (windows.calibration.size + 2 * windows.held_out.size)
    free = shutil.disk_usage(target).free
    needed = layers + heads + states
    if needed > free:
        raise SettingsError(
            f"{target}: needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free: make room, or name another disk",
            "TARGET",
        )
