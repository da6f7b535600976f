"""What the repository's documents contain: links, anchors, code, prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [
    *SITE,
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "charts/octavo/README.md")
    ),
]
# Pages with links into the documentation, whose commands are those of benchmarks and tools.
OTHERS = [ROOT / "bench/README.md", ROOT / "tools/README.md"]

_FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    """A file's name in the repository."""
    return str(path.relative_to(ROOT))


@cache
def text(path: Path) -> str:
    """A document."""
    return path.read_text()


def blocks(path: Path, *languages: str) -> Iterator[str]:
    """Fenced code of these languages; the language of a block without one is ""."""
    return (code for language, code in _FENCE.findall(text(path)) if language in languages)


def unfenced(path: Path) -> str:
    """A document without its fenced code; lines keep their numbers."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text(path))


def spans(path: Path) -> list[str]:
    """Code within lines."""
    return _SPAN.findall(unfenced(path))


def prose(path: Path) -> str:
    """A document without code and without the targets of links."""
    return _LINK.sub("]", _SPAN.sub("CODE", unfenced(path)))


def links(path: Path) -> list[str]:
    """Targets of links within the repository."""
    found = _LINK.findall(_SPAN.sub("CODE", unfenced(path)))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


@cache
def anchors(path: Path) -> frozenset[str]:
    """What a link to a heading of this document may end with."""
    headings = re.findall(r"^#+ (.+)$", unfenced(path), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def commands(path: Path, program: str) -> list[str]:
    """The arguments of each command of a program in blocks of a shell."""
    lines = "\n".join(blocks(path, "", "sh")).replace("\\\n", " ").splitlines()
    calls = (re.search(rf"(?:^|&& |\$ ){re.escape(program)}\b(?! *\|)([^#&|]*)", line.strip()) for line in lines)
    return [call[1] for call in calls if call]
