"""Faults on demand, to prove that a kill between any two writes is survived: `OCTAVO_FAILPOINTS=kube.write:raise@3`.

The third write fails (`raise`) or the process dies at once as if killed (`exit`). Costs one comparison when unset.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

KILLED = 137


class FailpointError(Exception):
    """The injected fault."""


class Failpoint:
    """Counts passes of one point and fails at the one the environment names."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._left = 0
        self._action = ""
        for entry in environment.get("OCTAVO_FAILPOINTS", "").split(","):
            point, _, rest = entry.strip().partition(":")
            if point == name:
                self._action, _, count = rest.partition("@")
                if self._action not in ("raise", "exit") or not count.isdigit() or not int(count):
                    raise ValueError(f"OCTAVO_FAILPOINTS: {entry!r} must be {name}:raise@N or {name}:exit@N")
                self._left = int(count)

    def hit(self) -> None:
        """Pass the point once."""
        if not self._left:
            return
        self._left -= 1
        if self._left:
            return
        if self._action == "exit":
            os._exit(KILLED)
        raise FailpointError(f"failpoint {self._name}")
