"""Kernels compiled when the image was built: a read-only layer below the cache of kernels that a pod compiles itself.

Triton stores compiled kernels in folders named by a key. The key is a hash over Triton's own files, the kernel's source
and first line number, the types, constants and divisibilities of its arguments, options, the GPU's compute capability
and the version of ptxas. The key does not contain the GPU itself, so `octavo_inference.tools.precompile` can fill the
cache without one, and a server on a GPU finds the kernels. The image's folders are read-only: kernels missing there go
to TRITON_CACHE_DIR, as usual.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_inference.backends.cuda.aot import triton_hooks

# Location in the image: below the environment that the server runs in, next to the driver stub.
FOLDER = Path(sys.prefix) / "lib" / "octavo" / "kernels"
_GROUP = "__grp__"


@dataclass(slots=True)
class CacheUse:
    """Kernels that a process needed: `ready` were compiled before, `compiled` were not, and took `seconds` in all."""

    ready: int = 0
    compiled: int = 0
    seconds: float = 0.0

    def __call__(self, *, times: Any, cache_hit: bool, **_: object) -> None:
        """Triton's compilation listener, called after each kernel lookup."""
        self.ready += cache_hit
        self.compiled += not cache_hit
        self.seconds += 0 if cache_hit else times.total / 1e6


@contextmanager
def watched() -> Generator[CacheUse, None, None]:
    """Count the kernel lookups inside the block."""
    found, before = CacheUse(), triton_hooks.get("compilation.listener")
    is_set = triton_hooks.set_to("compilation.listener", found)
    try:
        yield found
    finally:
        if is_set:
            triton_hooks.set_to("compilation.listener", before)


def prepare(folder: Path = FOLDER) -> None:
    """Make Triton search `folder` first, where it exists. Must be called before the first kernel runs."""
    if folder.is_dir():
        triton_hooks.search_first(folder, _group)


def trim(folder: Path) -> None:
    """Remove files from a cache that no server reads, and make it relocatable.

    Groups name their files by absolute paths, and keep the source that Triton parsed next to the machine code.
    """
    for group in folder.glob(f"*/{_GROUP}*"):
        names = [name for name in json.loads(group.read_text())["child_paths"] if not name.endswith(".source")]
        group.write_text(json.dumps({"child_paths": {name: name for name in names}}))
    for source in folder.glob("*/*.source"):
        source.unlink()


def _group(folder: Path, filename: str) -> dict[str, str] | None:
    """The files of a group, wherever the folder is now; None unless all exist."""
    listed = folder / f"{_GROUP}{filename}"
    if not listed.is_file():
        return None
    files = {name: folder / name for name in json.loads(listed.read_text())["child_paths"]}
    return {name: str(path) for name, path in files.items()} if all(map(Path.is_file, files.values())) else None
