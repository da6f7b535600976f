"""The results of a quantization: a table for a terminal, and the JSON that goes with the model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from octavo_inference.model_loader import LoadedModel
from octavo_inference.tools.quantize.grid import Grid
from octavo_inference.tools.quantize.quality import Quality
from octavo_inference.tools.quantize.recipe import Grids, Recipe
from octavo_inference.tools.quantize.stored import PREFIX, modules

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """`grids` as they were used. `bits`: mean stored bits per weight of the layers' matrices.

    `bytes_`: size of all files of weights, embedding included. `seconds` it took.
    """

    recipe: Recipe
    grids: Grids
    bits: float
    quality: Quality
    bytes_: int
    seconds: float


def report(model: LoadedModel, result: QuantizedModel) -> Json:
    """All figures by name. Bits are per weight: those of the layers' matrices, and of the whole model."""
    recipe, weights = result.recipe, model.weights
    unique = {id(tensor): tensor for tensor in weights.tensors()}.values()
    elements = sum(math.prod(tensor.shape) for tensor in unique)
    return {
        "source": model.text.name,
        "format": recipe.format,
        "method": recipe.method,
        "group_size": recipe.group,
        "zero_points": recipe.zero_points,
        "matrix_bits": round(result.bits, 3),
        "model_bits": round(result.bytes_ * 8 / elements, 3),
        "bytes": result.bytes_,
        **{name: round(value, 6) for name, value in asdict(result.quality).items()},
        "seconds": round(result.seconds, 1),
        "other_grids": other_grids(model, result),
    }


def other_grids(model: LoadedModel, result: QuantizedModel) -> dict[str, str]:
    """Modules that are not on the recipe's grid, and what they are on."""
    found = {}
    for number, layer in enumerate(result.grids):
        for module in modules(model.config):
            grid = layer.get(module.stage)
            if grid != result.recipe.grid:
                found[f"{PREFIX}layers.{number}.{module.name}"] = describe(grid)
    return found


def describe(grid: Grid | None) -> str:
    """A grid in a few words."""
    if grid is None:
        return "16 bits"
    if grid.floating:
        return "fp8 e4m3, a scale per row"
    groups = "a scale per row" if grid.group is None else f"groups of {grid.group}"
    return f"int{grid.bits}, {groups}{'' if grid.symmetric else ', zero points'}"


def table(found: Json) -> str:
    """The figures for a terminal."""
    before, after = found["perplexity_before"], found["perplexity_after"]
    rows = [
        ("bits per weight of the matrices", f"{found['matrix_bits']:.2f}"),
        ("bits per weight of the model", f"{found['model_bits']:.2f}"),
        ("size", f"{found['bytes'] / 1e6:.1f} MB"),
        ("perplexity before", f"{before:.3f}"),
        ("perplexity after", f"{after:.3f} ({after / before - 1:+.2%})"),
        ("mean KL divergence, nats", f"{found['mean_kl']:.5f}"),
        ("equal first choices", f"{found['top1_agreement']:.2%}"),
        ("tokens measured", f"{found['tokens']}"),
        ("seconds", f"{found['seconds']:.0f}"),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name.ljust(width)}  {value}" for name, value in rows]
    others = found["other_grids"]
    if others:
        lines.append(f"{len(others)} modules on other grids:")
        lines += [f"  {name}: {what}" for name, what in others.items()]
    return "\n".join(lines) + "\n"
