"""What this machine's memory and multiply-adds, measured in the same run, allow a load at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.lib.loads import Load

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Floor:
    """The least seconds that a load takes, and what sets them."""

    seconds: float
    what: str


def limits(records: Sequence[Record], model: str = "") -> dict[str, float]:
    """The best of each limit over the rounds of a model; empty where none was measured."""
    name = f"limits-{model}" if model else "roofline"
    best: dict[str, float] = {}
    for record in records:
        if record["experiment"] == name and "error" not in record:
            for key in ("read_gb_per_s", "fp32_gflops", "bf16_gflops", "int8_gops"):
                if key in record:
                    best[key] = max(best.get(key, 0.0), record[key])
    return best


def peak(limit: Mapping[str, float], *, bits4: bool) -> tuple[float, str]:
    """1e9 operations per second of the fastest multiply-adds that weights in 4 bits, or in bf16, can have; its name."""
    kinds = {"fp32_gflops": "fp32", "bf16_gflops": "bf16"} | ({"int8_gops": "byte"} if bits4 else {})
    return max((limit[key], f"{name} multiply-adds") for key, name in kinds.items() if key in limit)


def floor(load: Load, model: Mapping[str, int], limit: Mapping[str, float], *, bits4: bool) -> Floor:
    """Reading the weights in each step, or the multiply-adds of all linears, whichever takes longer.

    Keys, values and activations are left out. At least as many steps as the longest answer has tokens; each reads all
    weights. The head is computed for answered tokens only.
    """
    steps, answered = max(load.output_lengths), sum(load.output_lengths)
    tokens = sum(map(len, load.prompts)) + answered - len(load.prompts)
    operations = 2 * (model["linear_parameters"] * tokens + model["head_parameters"] * answered)
    fastest, kind = peak(limit, bits4=bits4)
    memory = Floor(steps * model["weight_bytes"] / (limit["read_gb_per_s"] * 1e9), "memory")
    arithmetic = Floor(operations / (fastest * 1e9), kind)
    return max(memory, arithmetic, key=lambda floor: floor.seconds)
