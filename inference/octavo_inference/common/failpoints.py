"""Faults on demand, for tests of what happens then: `OCTAVO_FAILPOINTS=engine.step:raise@3` fails the third step.

Several are separated by commas. Without the variable nothing is ever hit.
"""

from __future__ import annotations

import os
import re

from octavo_inference.common.errors import OctavoError, SettingsError

VARIABLE = "OCTAVO_FAILPOINTS"


class InjectedFaultError(OctavoError):
    """A fault that the environment asked for."""


class Failpoints:
    """Counts how often each named point is passed and raises at the chosen time."""

    def __init__(self, text: str) -> None:
        self._left: dict[str, int] = {}
        for entry in filter(None, text.split(",")):
            match = re.fullmatch(r"([a-z.]+):raise@([1-9][0-9]*)", entry.strip())
            if match is None:
                raise SettingsError(f"{VARIABLE}: {entry!r} is not of the form name:raise@N", VARIABLE)
            self._left[match[1]] = int(match[2])

    @classmethod
    def from_environment(cls) -> Failpoints:
        """Those of this process."""
        return cls(os.environ.get(VARIABLE, ""))

    def hit(self, name: str) -> None:
        """Raise `InjectedFaultError` at the N-th call for `name`, once."""
        if name not in self._left:
            return
        self._left[name] -= 1
        if self._left[name] == 0:
            del self._left[name]
            raise InjectedFaultError(f"failpoint {name}")
