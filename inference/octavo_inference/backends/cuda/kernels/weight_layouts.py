"""The kernels' names for weight layouts."""

from __future__ import annotations

from typing import Literal

Stored = Literal["dense", "int4", "int8", "fp8"]
