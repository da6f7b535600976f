"""Which matrices matter most: the divergence of the model's output when one stage of one layer alone is rounded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Weights, dequantize, required
from octavo_inference.tools.quantize import decoder
from octavo_inference.tools.quantize.decoder import Floats, layer_values, release_layer
from octavo_inference.tools.quantize.grid import Grid, round_to_nearest
from octavo_inference.tools.quantize.quality import OutputHead, compare
from octavo_inference.tools.quantize.recipe import Grids, column_counts, row_counts
from octavo_inference.tools.quantize.stages import STAGES

Place = tuple[int, str]


def divergences(
    config: ModelConfig,
    weights: Weights,
    grids: Grids,
    tokens: NDArray[np.int64],
    hidden: Floats,
    found: dict[Place, float],
) -> Iterator[int]:
    """Fill `found` with the mean KL divergence of each stage, for one window of `tokens` with embeddings `hidden`.

    Yields the number of each layer as it is done, so that progress can be shown. All models with one rounded stage
    advance through the layers together, so each layer is read once.
    """
    changed: dict[Place, Floats] = {}
    exact = hidden
    for number, source in enumerate(weights.layers):
        layer = layer_values(source)
        for place, states in changed.items():
            changed[place] = decoder.forward(config, number, layer, states)
        for stage in STAGES:
            grid = grids[number].get(stage.name)
            if grid is not None:
                rounded = {name: round_to_nearest(layer[name], grid).values() for name in stage.matrices}
                changed[number, stage.name] = decoder.forward(config, number, {**layer, **rounded}, exact)
        exact = decoder.forward(config, number, layer, exact)
        release_layer(source)
        if number == config.layers - 1:
            output = OutputHead(dequantize(required(weights.final_norm)), weights.lm_head)
            for place, states in changed.items():
                found[place] = compare(config, exact[None], states[None], (output, output), tokens[None]).mean_kl
        yield number


def most_sensitive(
    config: ModelConfig, grids: Grids, finer: Grid | None, found: dict[Place, float], bits: float
) -> list[Place]:
    """The stages with the most divergence per added bit, as long as all add at most `bits` per weight on average."""
    rows, columns = row_counts(config), column_counts(config)

    def added(place: Place) -> float:
        layer, stage = place
        more = 16.0 if finer is None else finer.stored_bits(columns[stage])
        return (more - grids[layer][stage].stored_bits(columns[stage])) * rows[stage] * columns[stage]

    left = bits * config.layers * sum(rows[stage] * columns[stage] for stage in rows)
    chosen = []
    for place in sorted(found, key=lambda place: -found[place] / added(place)):
        if added(place) <= left:
            left -= added(place)
            chosen.append(place)
    return sorted(chosen)


def with_kept(grids: Grids, kept: list[Place], finer: Grid | None) -> Grids:
    """The grids with a finer one, or none, for the stages that are kept."""
    result = [dict(layer) for layer in grids]
    for layer, stage in kept:
        if finer is None:
            del result[layer][stage]
        else:
            result[layer][stage] = finer
    return result
