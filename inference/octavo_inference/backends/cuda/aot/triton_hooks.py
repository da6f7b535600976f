"""The hooks of Triton that Octavo sets. None is a public interface, so each may be missing in another release.

A server starts without them: its kernels are then compiled at start, with the compiler that Triton finds, and are not
counted in the log. `tests/kernels/test_triton_hooks.py` says which of them the installed Triton has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import triton

log = logging.getLogger(__name__)

Hook = Literal["build.impl", "cache.manager_class", "compilation.listener"]
HOOKS: dict[Hook, str] = {
    "build.impl": "a compiled driver stub is not used: Triton compiles one, which needs a C compiler",
    "cache.manager_class": "kernels that were compiled ahead are not used: the start compiles them",
    "compilation.listener": "compiled kernels are not counted",
}
"""Names below `triton.knobs`, and what a Triton without that hook means."""


def get(hook: Hook) -> Any:
    """The hook's value; None also where this Triton has none."""
    group, name = hook.split(".")
    return getattr(getattr(getattr(triton, "knobs", None), group, None), name, None)


def set_to(hook: Hook, value: object) -> bool:
    """Set a hook, before the first kernel runs. Returns False, and logs what that means, where there is none."""
    group, name = hook.split(".")
    holder = getattr(getattr(triton, "knobs", None), group, None)
    if not hasattr(holder, name):
        log.warning("Triton %s has no hook knobs.%s: %s", triton.__version__, hook, HOOKS[hook])
        return False
    setattr(holder, name, value)
    return True


def search_first(folder: Path, group_of: Callable[[Path, str], dict[str, str] | None]) -> bool:
    """Make Triton look for compiled kernels in a read-only `folder` first, and store those missing there as usual.

    `group_of(folder of a kernel, file name)` are the files of a group, by name. Returns False, and logs, if it cannot.
    """
    try:
        from triton.runtime.cache import FileCacheManager  # noqa: PLC0415 - its absence is one of the cases
    except ImportError:
        log.warning("Triton %s has no FileCacheManager: %s", triton.__version__, HOOKS["cache.manager_class"])
        return False

    class Layered(FileCacheManager):  # type: ignore[misc]  # Triton has no types
        def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
            super().__init__(key, override=override, dump=dump)
            self._below = None if override or dump else folder / key

        def get_file(self, filename: str) -> str | None:
            if self._below and (self._below / filename).is_file():
                return str(self._below / filename)
            found: str | None = super().get_file(filename)
            return found

        def get_group(self, filename: str) -> dict[str, str] | None:
            below = group_of(self._below, filename) if self._below else None
            found: dict[str, str] | None = below or super().get_group(filename)
            return found

    return set_to("cache.manager_class", Layered)
