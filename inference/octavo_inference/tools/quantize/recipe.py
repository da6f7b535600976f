"""What to do to each matrix: settings, and the grids that follow from them for a model."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from octavo_inference.common.errors import SettingsError
from octavo_inference.models.config import ModelConfig
from octavo_inference.tools.quantize.grid import Grid
from octavo_inference.tools.quantize.layer import Method
from octavo_inference.tools.quantize.stages import STAGES
from octavo_inference.tools.quantize.stored import PREFIX, modules

Format = Literal["int4", "int8", "fp8"]
FORMATS: tuple[Format, ...] = ("int4", "int8", "fp8")
METHODS: tuple[Method, ...] = ("rtn", "gptq", "awq")
GROUPS = (128, 64, 32)
CHANNEL = "channel"
# The grid of each stage by name, for each layer; a stage without one stays in 16 bits.
Grids = list[dict[str, Grid]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """`group`: columns that share a scale, None for a row. `zero_points`: asymmetric groups.

    `by_activation`: GPTQ's order. `keep`: `none`, `auto`, or a pattern of module names. `keep_bits`: bits per weight
    that `auto` may add.
    """

    format: Format
    method: Method
    group: int | None
    zero_points: bool = False
    by_activation: bool = True
    keep: str = "none"
    keep_bits: float = 0.25

    @property
    def grid(self) -> Grid:
        """The grid of most matrices."""
        bits = 4 if self.format == "int4" else 8
        return Grid(bits, self.group, not self.zero_points, floating=self.format == "fp8")

    @property
    def finer(self) -> Grid | None:
        """The grid of matrices that `auto` keeps; None: 16 bits."""
        return Grid(8, self.group) if self.format == "int4" else None


def recipe_for(
    config: ModelConfig,
    format_: Format,
    method: Method | None,
    group: str,
    *,
    zero_points: bool,
    by_activation: bool,
    keep: str,
    keep_bits: float,
) -> Recipe:
    """The recipe of a command line. `group` is a number, `channel` or `auto`. Raises `SettingsError`."""
    chosen = method or ("gptq" if format_ == "int4" else "rtn")
    if format_ == "fp8" and chosen != "rtn":
        raise SettingsError(f"--method: {chosen} is for integers, and --format is fp8: leave --method out", "--method")
    if zero_points and format_ != "int4":
        raise SettingsError(
            f"--zero-points: for --format int4, and the format is {format_}: leave --zero-points out", "--zero-points"
        )
    if format_ == "fp8" and group not in {"auto", CHANNEL}:
        raise SettingsError(
            f"--group-size: {group}, and fp8 has one scale for each row: leave --group-size out", "--group-size"
        )
    if format_ == "int4" and group == CHANNEL:
        raise SettingsError(f"--group-size: {CHANNEL} is too coarse for 4 bits: choose 128, 64 or 32", "--group-size")
    return Recipe(
        format_, chosen, _group(config, format_, group), zero_points, by_activation, keep=keep, keep_bits=keep_bits
    )


def _group(config: ModelConfig, format_: Format, given: str) -> int | None:
    if given == CHANNEL or (given == "auto" and format_ != "int4"):
        return None
    if given != "auto":
        return int(given)
    widths = column_counts(config).values()
    return next((group for group in GROUPS if all(width % group == 0 for width in widths)), GROUPS[-1])


def column_counts(config: ModelConfig) -> dict[str, int]:
    """Columns of the matrices of each stage."""
    queries = config.heads * config.head_dim
    return {"qkv": config.hidden, "o": queries, "gate_up": config.hidden, "down": config.intermediate}


def row_counts(config: ModelConfig) -> dict[str, int]:
    """Rows of the matrices of each stage together."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "qkv": queries + 2 * keys,
        "o": config.hidden,
        "gate_up": 2 * config.intermediate,
        "down": config.hidden,
    }


def unfit(config: ModelConfig, grid: Grid) -> list[str]:
    """Stages whose columns are not whole groups."""
    return [name for name, columns in column_counts(config).items() if not grid.fits(columns)]


def grids_of(config: ModelConfig, recipe: Recipe) -> Grids:
    """The grids before `auto` changes any. Raises `SettingsError` when nothing is left to quantize."""
    grid = recipe.grid
    usable = [stage.name for stage in STAGES if grid.fits(column_counts(config)[stage.name])]
    result = [dict.fromkeys(usable, grid) for _ in range(config.layers)]
    if recipe.keep not in {"none", "auto"}:
        kept = kept_stages(config, recipe.keep)
        if not kept:
            raise SettingsError(
                f"--keep: {recipe.keep!r} matches no module, such as {_example(config)}: check the pattern", "--keep"
            )
        for layer, stage in kept:
            result[layer].pop(stage, None)
    if not any(result):
        raise SettingsError(
            f"--group-size: no matrix has columns in groups of {grid.group}"
            if not usable
            else f"--keep: {recipe.keep!r} matches all modules: nothing is left to quantize",
            "--keep" if usable else "--group-size",
        )
    return result


def kept_stages(config: ModelConfig, pattern: str) -> list[tuple[int, str]]:
    """Layer and stage of the modules that a pattern such as `*.layers.0.*` matches.

    A stage is kept as a whole: engines store its matrices together.
    """
    found = {
        (number, module.stage)
        for number in range(config.layers)
        for module in modules(config)
        if fnmatch.fnmatchcase(f"{PREFIX}layers.{number}.{module.name}", pattern)
    }
    return sorted(found)


def _example(config: ModelConfig) -> str:
    return f"{PREFIX}layers.0.{modules(config)[-1].name}"


def matrix_elements(config: ModelConfig) -> int:
    """Weights of the matrices of a layer."""
    rows, columns = row_counts(config), column_counts(config)
    return sum(rows[stage] * columns[stage] for stage in rows)


def weight_bits(config: ModelConfig, grids: Grids) -> float:
    """Mean stored bits per weight of the layers' matrices, with scales and zero points."""
    return mean_bits(config, grids, Grid.stored_bits)


def mean_bits(config: ModelConfig, grids: Grids, bits: Callable[[Grid, int], float]) -> float:
    """The mean of `bits(grid, columns)` over the layers' matrices; those without a grid have 16."""
    rows, columns = row_counts(config), column_counts(config)

    def total(stage: str, grid: Grid | None) -> float:
        return rows[stage] * columns[stage] * (16 if grid is None else bits(grid, columns[stage]))

    every = sum(total(stage, layer.get(stage)) for layer in grids for stage in rows)
    return every / (matrix_elements(config) * config.layers)
