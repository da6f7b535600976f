"""Rotary parameters of config.json, in all formats that versions of transformers have written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.rope import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeScaling,
    YarnScaling,
    long_magnitude,
    yarn_magnitude,
)


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """`local_theta`: theta of layers with a window, if different; `dim`: rotated elements of a head."""

    theta: float
    dim: int
    scaling: RopeScaling | None
    local_theta: float | None


def read_rope(path: Path, data: dict[str, Any], head_dim: int, *, theta: float, share: float | None) -> RopeParameters:
    """`theta`, `share`: the family's defaults of the base and the rotated part of a head; None: all of it rotates.

    Raises UnsupportedModelError for an unknown scaling, ModelError for an incomplete one.
    """
    # transformers 5 writes rope_parameters, by layer type where they differ; before it was rope_theta, rope_scaling
    # and Gemma 3's rope_local_base_freq.
    given = data.get("rope_parameters") or {}
    local: dict[str, Any] = {}
    if "full_attention" in given or "sliding_attention" in given:
        local, given = given.get("sliding_attention") or {}, given.get("full_attention") or {}
    rope = given or data.get("rope_scaling") or {}
    if _kind(local) != "default":
        raise UnsupportedModelError(f"{path}: rope scaling {_kind(local)!r} of sliding-window layers is not supported")
    given_share = rope.get("partial_rotary_factor") or data.get("partial_rotary_factor") or data.get("rotary_pct")
    rotated = _number(path, "partial_rotary_factor", given_share or share or 1.0)
    dim = int(head_dim * rotated)
    if dim != head_dim and share is None:
        raise UnsupportedModelError(f"{path}: partial_rotary_factor {rotated} is not supported")
    if dim % 2 or not 2 < dim <= head_dim:
        raise ModelError(f"{path}: partial_rotary_factor {rotated} rotates {dim} of {head_dim} elements of a head")
    local_theta = local.get("rope_theta") or data.get("rope_local_base_freq") or data.get("local_rope_theta")
    stated = rope.get("rope_theta") or data.get("rope_theta") or data.get("global_rope_theta")
    return RopeParameters(
        theta=_theta(path, stated or data.get("rotary_emb_base") or theta),
        dim=dim,
        scaling=_scaling(path, data, rope, dim),
        local_theta=None if local_theta is None else _theta(path, local_theta),
    )


def _scaling(path: Path, data: dict[str, Any], rope: dict[str, Any], dim: int) -> RopeScaling | None:
    kind = _kind(rope)
    if kind == "default":
        return None
    if kind not in _SCALINGS:
        raise UnsupportedModelError(f"{path}: rope scaling {kind!r} is not supported ({', '.join(_SCALINGS)} are)")
    try:
        scaling = _SCALINGS[kind](rope, data)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{path}: rope scaling {kind} is incomplete: {error}") from error
    if isinstance(scaling, LongScaling):
        for name, divisors in (("short_factor", scaling.short), ("long_factor", scaling.long)):
            if len(divisors) != dim // 2 or min(divisors) <= 0:
                raise ModelError(f"{path}: {name} has {len(divisors)} entries, expected {dim // 2} positive numbers")
    return scaling


def _llama3(rope: dict[str, Any], data: dict[str, Any]) -> RopeScaling:
    return Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_position=_original(rope, data),
    )


def _linear(rope: dict[str, Any], _: dict[str, Any]) -> RopeScaling:
    return LinearScaling(float(rope["factor"]))


def _yarn(rope: dict[str, Any], data: dict[str, Any]) -> RopeScaling:
    original = _original(rope, data)
    factor = float(rope.get("factor") or data["max_position_embeddings"] / original)
    magnitude = rope.get("attention_factor")
    if magnitude is None:
        magnitude = yarn_magnitude(factor)
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            magnitude = yarn_magnitude(factor, rope["mscale"]) / yarn_magnitude(factor, rope["mscale_all_dim"])
    return YarnScaling(
        factor=factor,
        original_max_position=original,
        magnitude=float(magnitude),
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        truncate=bool(rope.get("truncate", True)),
    )


def _long(rope: dict[str, Any], data: dict[str, Any]) -> RopeScaling:
    original = _original(rope, data)
    factor = float(rope.get("factor") or data["max_position_embeddings"] / original)
    magnitude = rope.get("attention_factor")
    if rope.get("long_mscale") is not None:  # PhiMoE
        magnitude = rope["long_mscale"]
        if rope["short_mscale"] != magnitude:
            raise ValueError(f"short_mscale {rope['short_mscale']} and long_mscale {magnitude} must be equal")
    return LongScaling(
        short=tuple(map(float, rope["short_factor"])),
        long=tuple(map(float, rope["long_factor"])),
        original_max_position=original,
        magnitude=long_magnitude(factor, original) if magnitude is None else float(magnitude),
    )


_SCALINGS = {"llama3": _llama3, "linear": _linear, "yarn": _yarn, "longrope": _long}


def _kind(rope: dict[str, Any]) -> str:
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    # Phi-3's first files call it "su".
    return "longrope" if kind == "su" else kind


def _original(rope: dict[str, Any], data: dict[str, Any]) -> int:
    """The original context length: next to the rope parameters, among them, or the model's own."""
    value = data.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    value = int(value or data["max_position_embeddings"])
    if value <= 1:
        raise ValueError(f"original_max_position_embeddings is {value}")
    return value


def _number(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{path}: {name} is {value!r}, expected a number")
    return value


def _theta(path: Path, value: Any) -> float:
    if _number(path, "rope_theta", value) <= 1:
        raise ModelError(f"{path}: rope_theta is {value}, expected more than 1")
    return float(value)
