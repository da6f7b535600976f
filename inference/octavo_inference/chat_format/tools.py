"""What a request says of its tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that the model may call. `parameters` is the JSON schema of its arguments, None for any object."""

    name: str
    parameters: dict[str, Any] | None = None
    strict: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may or must call. `names` are the allowed ones; for `named` exactly one."""

    mode: Literal["auto", "required", "named"]
    names: tuple[str, ...]
