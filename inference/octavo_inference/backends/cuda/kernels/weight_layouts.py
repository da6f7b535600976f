"""What the kernels call the layouts of weights."""

from __future__ import annotations

from typing import Literal

Stored = Literal["dense", "int4", "int8", "fp8"]
