"""Models among GGUF files, by file names: a model may be a set of files, and some files are no models.

The names of a set are llama.cpp's: NAME-00001-of-00003.gguf.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
# Importance matrices and image encoders, which are published beside models.
_HELPER = re.compile(r"(?:.*[-._])?(?:imatrix|mmproj)|mmproj[-._].*", re.IGNORECASE)


def part_names(name: str) -> tuple[str, ...]:
    """The names of all files of the set that a file belongs to, in order; a file that is no part alone."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return (name,)
    return tuple(f"{match[1]}-{number:05}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1))


def gguf_models(names: Iterable[str]) -> list[tuple[str, ...]]:
    """The models among file names, each as the names of all its files, present or not.

    Files whose names are those of importance matrices and image encoders are left out, unless there is nothing else.
    """
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    models = [name for name in ggufs if not _HELPER.fullmatch(name.removesuffix(".gguf"))]
    return list(dict.fromkeys(part_names(name) for name in models or ggufs))
