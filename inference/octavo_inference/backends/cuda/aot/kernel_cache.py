"""Kernels compiled when the image was built, below those that a pod compiles itself.

Triton keeps what it compiled in folders named by a key: a hash over Triton's own files, the kernel's source with the
line it begins at, the types, constants and divisibilities of its arguments, options, the card's compute capability and
the version of ptxas. The card itself is no part of it, so what `octavo_inference.tools.precompile` makes without one is
what a server on one looks for. Folders of the image cannot be written to: what they lack goes to TRITON_CACHE_DIR as
ever.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.runtime.cache import FileCacheManager

# Where the image has them: below the environment that the server runs in, beside the driver's stub.
FOLDER = Path(sys.prefix) / "lib" / "octavo" / "kernels"
_GROUP = "__grp__"


@dataclass(slots=True)
class CacheUse:
    """Kernels that a process needed: `ready` were compiled before, `compiled` were not, for `seconds` in all."""

    ready: int = 0
    compiled: int = 0
    seconds: float = 0.0

    def __call__(self, *, times: Any, cache_hit: bool, **_: object) -> None:
        """Triton's listener, after each kernel that it looked for."""
        self.ready += cache_hit
        self.compiled += not cache_hit
        self.seconds += 0 if cache_hit else times.total / 1e6


@contextmanager
def watched() -> Generator[CacheUse, None, None]:
    """Count the kernels that are looked for inside."""
    found, before = CacheUse(), triton.knobs.compilation.listener
    triton.knobs.compilation.listener = found
    try:
        yield found
    finally:
        triton.knobs.compilation.listener = before


def prepare(folder: Path = FOLDER) -> None:
    """Have Triton look into `folder` first, where there is one. To be called before the first kernel runs."""
    if folder.is_dir():
        triton.knobs.cache.manager_class = _layered(folder)


def trim(folder: Path) -> None:
    """Take out of a cache what no server reads, and make it one that can be moved.

    Groups name their files by absolute paths, and keep the source that Triton parsed beside the machine code.
    """
    for group in folder.glob(f"*/{_GROUP}*"):
        names = [name for name in json.loads(group.read_text())["child_paths"] if not name.endswith(".source")]
        group.write_text(json.dumps({"child_paths": {name: name for name in names}}))
    for source in folder.glob("*/*.source"):
        source.unlink()


def _layered(folder: Path) -> type[FileCacheManager]:
    """A cache manager (Triton wants a class) that reads from `folder` what is there, and is Triton's own beside it."""

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
            found: dict[str, str] | None = _group(self._below, filename) or super().get_group(filename)
            return found

    return Layered


def _group(folder: Path | None, filename: str) -> dict[str, str] | None:
    """The files that belong together, wherever the folder lies now; None unless all are there."""
    listed = folder and folder / f"{_GROUP}{filename}"
    if not (folder and listed and listed.is_file()):
        return None
    files = {name: folder / name for name in json.loads(listed.read_text())["child_paths"]}
    return {name: str(path) for name, path in files.items()} if all(map(Path.is_file, files.values())) else None
