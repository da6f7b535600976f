"""Fault injection for tests: `OCTAVO_FAILPOINTS=engine.step:raise@3` fails the third step.

`raise` raises `InjectedFaultError`, `exit` ends the process at once like SIGKILL. Several entries are separated by
commas; names of other programs' failpoints are ignored. Without the variable no failpoint is active.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

VARIABLE = "OCTAVO_FAILPOINTS"
KILLED = 137
"""Exit status of `exit`, the same as after SIGKILL by a container runtime."""


class InjectedFaultError(Exception):
    """A fault injected through the environment variable."""


class Failpoints:
    """Counts the calls of each failpoint, and fails once, at the configured call."""

    def __init__(self, text: str) -> None:
        self._left: dict[str, int] = {}
        self._ends: set[str] = set()
        for entry in filter(None, (entry.strip() for entry in text.split(","))):
            match = re.fullmatch(r"([a-z.]+):(raise|exit)@([1-9][0-9]*)", entry)
            if match is None:
                raise ValueError(f"{VARIABLE}: {entry!r} must be NAME:raise@N or NAME:exit@N, N from 1")
            self._left[match[1]] = int(match[3])
            if match[2] == "exit":
                self._ends.add(match[1])

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Failpoints:
        """The failpoints of this process. Raises `ValueError` for an invalid value."""
        return cls(environment.get(VARIABLE, ""))

    def hit(self, name: str) -> None:
        """Pass a failpoint: raises `InjectedFaultError`, or ends the process, at the N-th call for `name`."""
        if name not in self._left:
            return
        self._left[name] -= 1
        if self._left[name]:
            return
        del self._left[name]
        if name in self._ends:
            os._exit(KILLED)
        raise InjectedFaultError(f"failpoint {name}")
