"""What a module logs."""

from __future__ import annotations

from types import ModuleType

import pytest


def warnings_of(module: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str = "_LOG") -> list[str]:
    """The warnings that a module's logger gets from now on.

    Not pytest's `caplog`: tests of the log format and of commands leave the loggers configured.
    """
    logged: list[str] = []
    monkeypatch.setattr(getattr(module, name), "warning", lambda text, *values: logged.append(text % values))
    return logged
