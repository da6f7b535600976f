"""Pod profiles: measured step costs and capacities. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from math import isfinite
from typing import Final


class ProfileError(ValueError):
    """A profile is invalid; the message names field, value and fix."""


@dataclass(frozen=True, slots=True)
class PodProfile:
    """One kind of pod. Times are seconds.

    A step of P prompt tokens and n decoding rows that attend to C tokens takes `max(floor, base + prefill*P + row*n) +
    context*C + attention*(sum over prompt tokens of the tokens before them)`, times a factor with mean 1 and standard
    deviation `noise`, drawn every 64 steps. `floor` is the time to read the weights once, even for few rows. Floor and
    attention are deliberately in no scaler's model: a simulator with the scaler's own formula would favour it.

    A step with prompt tokens has at least `mixed_base` as its base and at least `mixed_floor` as its floor. A GPU runs
    decodes alone as one graph. In other steps the host launches each kernel, which takes a time of its own.

    `gpus`: GPUs of one pod, for GPU-hours. `budget`: query tokens of a step. `slowdown`: the engine's
    `--prefill-slowdown`, 0 for none. `start`: median seconds from a pod's creation to ready.
    """

    name: str
    base: float
    prefill: float
    row: float
    context: float
    pool_tokens: int
    attention: float = 0.0
    floor: float = 0.0
    mixed_base: float = 0.0
    mixed_floor: float = 0.0
    noise: float = 0.03
    gpus: float = 1.0
    block_size: int = 16
    max_running: int = 128
    budget: int = 2048
    max_waiting: int = 1024
    slowdown: float = 0.0
    start: float = 60.0
    source: str = ""

    def __post_init__(self) -> None:
        for name in (
            "base", "prefill", "row", "context", "attention", "floor", "mixed_base", "mixed_floor", "noise", "gpus",
            "slowdown", "start",
        ):  # fmt: skip
            value = getattr(self, name)
            if not isfinite(value) or value < 0:
                raise ProfileError(f"profile field {name}: found {value}, expected a number of at least 0")
        if self.base <= 0 and self.row <= 0:
            raise ProfileError("profile fields base and row: both are 0; a step must take time")
        for name in ("pool_tokens", "block_size", "max_running", "budget", "max_waiting"):
            if getattr(self, name) < 1:
                raise ProfileError(f"profile field {name}: found {getattr(self, name)}, expected at least 1")
        if self.budget <= self.max_running:
            raise ProfileError(
                f"profile field budget: found {self.budget}, expected more than max_running ({self.max_running})"
            )

    def linear(self, rows: int, prompt: int = 0) -> float:
        """Seconds of a step without attention."""
        if not prompt:
            return max(self.floor, self.base + self.row * rows)
        base, floor = max(self.base, self.mixed_base), max(self.floor, self.mixed_floor)
        return max(floor, base + self.prefill * prompt + self.row * rows)

    def mixed(self, rows: int, prompt: int, pairs: int) -> float:
        """Seconds of a step without the decodes' attention; `pairs` of a prompt token and one before it."""
        return self.linear(rows, prompt) + self.attention * pairs

    @property
    def blocks(self) -> int:
        """The number of blocks of the KV pool."""
        return self.pool_tokens // self.block_size


# 8 KV heads of 128 in both: 320 KiB and 128 KiB of KV per token at 16 bit. Attention of a prompt token to one earlier
# token costs 4 * layers * width operations, of 2 * parameters per prompt token: the same share of `prefill`.
PROFILES: Final = {
    profile.name: profile
    for profile in (
        PodProfile(
            name="llama2-70b-4xh100",
            base=28.8e-3,
            prefill=0.107e-3,
            row=0.283e-3,
            context=0.9e-7,
            attention=0.107e-3 * 4 * 80 * 8192 / 140e9,
            pool_tokens=400_000,
            budget=1024,
            gpus=4,
            source="Splitwise's measurements of Llama2-70B on four H100 (tensor parallel), least squares: "
            "decode within 1.8 %, prefill within 10 %. Pool: 4 x 80 GB x 0.9, less 140 GB of weights",
        ),
        PodProfile(
            name="8b-24gb",
            base=29e-3,
            prefill=0.27e-3,
            row=0.06e-3,
            context=2.2e-7,
            attention=0.27e-3 * 4 * 32 * 4096 / 16e9,
            pool_tokens=40_000,
            budget=1024,
            gpus=1,
            source="arithmetic, not measured: 16 GB of weights at 600 GB/s and 10 % overhead, 16 GFLOP per prompt "
            "token at 60 TFLOP/s, 128 KiB of KV per token. Pool: 24 GB x 0.9, less weights",
        ),
    )
}


def parse(text: str) -> PodProfile:
    """A profile from JSON. Raises `ProfileError`."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ProfileError(f"the profile is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ProfileError(f"the profile is {type(values).__name__}, expected an object of fields")
    known = {field.name: field for field in fields(PodProfile)}
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise ProfileError(f"profile field {unknown[0]} is unknown; known are {', '.join(known)}")
    missing = [name for name in ("base", "prefill", "row", "context", "pool_tokens") if name not in values]
    if missing:
        raise ProfileError(f"profile field {missing[0]} is missing")
    for name, value in values.items():
        kind = known[name].type
        good = isinstance(value, str) if kind == "str" else isinstance(value, int) and not isinstance(value, bool)
        good = good or (kind == "float" and isinstance(value, float))
        if not good:
            raise ProfileError(f"profile field {name}: found {value!r}, expected {kind}")
    return PodProfile(**{"name": "custom", **values})
