"""The `quantization_config` of config.json, as compressed-tensors defines it."""

from __future__ import annotations

from typing import Any

from octavo_inference.models.config import ModelConfig
from octavo_inference.tools.quantize.grid import Grid
from octavo_inference.tools.quantize.recipe import Grids
from octavo_inference.tools.quantize.stored import PREFIX, modules

Json = dict[str, Any]


def quantization_config(config: ModelConfig, grids: Grids) -> Json:
    """`config_groups` by grid; modules in 16 bits are in `ignore`.

    With one grid its target is every linear module, as other tools write it; with several, modules are listed.
    """
    by_grid: dict[Grid, list[str]] = {}
    kept = ["lm_head"]
    for number, layer in enumerate(grids):
        for module in modules(config):
            name = f"{PREFIX}layers.{number}.{module.name}"
            grid = layer.get(module.stage)
            (kept if grid is None else by_grid.setdefault(grid, [])).append(name)
    groups = {
        f"group_{at}": _group(grid, ["Linear"] if len(by_grid) == 1 else names)
        for at, (grid, names) in enumerate(by_grid.items())
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized" if any(grid.floating for grid in by_grid) else "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": kept,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _group(grid: Grid, targets: list[str]) -> Json:
    weights: Json = {
        "num_bits": grid.bits,
        "type": "float" if grid.floating else "int",
        "symmetric": grid.symmetric,
        "strategy": "channel" if grid.group is None else "group",
        "group_size": grid.group,
        "block_structure": None,
        "dynamic": False,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    return {"targets": targets, "weights": weights, "input_activations": None, "output_activations": None}
