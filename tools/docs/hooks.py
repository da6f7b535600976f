"""Hooks of mkdocs.

Files of the repository that pages link to become part of the site, below `repository/`, so that a link works on the
site as in the repository. A finished site that would load something from another host fails the build.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
# Code is left alone: fenced blocks and spans.
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FOREIGN = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//|<link[^>]*stylesheet[^>]*href=\"(?:https?:)?//"
)
_FOREIGN_CSS = re.compile(r"(?:url\(|@import )['\"]?(?:https?:)?//")


def on_files(files: Any, config: Any) -> Any:
    """Add what pages link to outside docs/, and what that links to."""
    pending = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    added: set[str] = set()
    while pending:
        page = pending.pop()
        for target in _targets(page, (ROOT / page).read_text()):
            if target not in added and not target.startswith("docs/"):
                added.add(target)
                files.append(_file(config, target))
                pending += [target] if target.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them; a link to a folder without README.md becomes its text."""
    origin = _origin(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        target = _target(origin, match[1])
        if target is None:
            return match[0]
        source = target.removeprefix("docs/") if target.startswith("docs/") else f"repository/{target}"
        return f"]({os.path.relpath(source, Path(page.file.src_uri).parent)}{match[2] or ''})"

    parts = _without_folders(origin, _CODE.split(markdown))
    return "".join(_code(part) if place % 2 else _LINK.sub(link, part) for place, part in enumerate(parts))


def on_post_build(config: Any) -> None:
    """Fail where a page or style sheet loads something from another host."""
    site = Path(config["site_dir"])
    found = [str(path) for path in site.rglob("*.html") if _FOREIGN.search(path.read_text())]
    found += [str(path) for path in site.rglob("*.css") if _FOREIGN_CSS.search(path.read_text())]
    if found:
        raise PluginError(f"loads from another host: {', '.join(found)}")


def _code(text: str) -> str:
    """In a cell of a table the repository's viewer needs an escape for a bar in code, which mkdocs would show."""
    return text if text.startswith("```") else text.replace("\\|", "|")


def _without_folders(origin: str, parts: list[str]) -> Iterator[str]:
    for place, part in enumerate(parts):
        yield (
            part
            if place % 2
            else re.sub(
                r"\[([^\]\n]+)\]\(([^)\s#]+)\)",
                lambda match: match[1] if _is_folder(origin, match[2]) else match[0],
                part,
            )
        )


def _is_folder(origin: str, link: str) -> bool:
    path = _path(origin, link)
    return path is not None and (ROOT / path).is_dir() and not (ROOT / path / "README.md").exists()


def _file(config: Any, target: str) -> Any:
    return File.generated(
        config, f"repository/{target}", abs_src_path=str(ROOT / target), inclusion=InclusionLevel.NOT_IN_NAV
    )


def _origin(src_uri: str) -> str:
    """A page's path in the repository."""
    return src_uri.removeprefix("repository/") if src_uri.startswith("repository/") else f"docs/{src_uri}"


def _targets(origin: str, text: str) -> list[str]:
    links = _LINK.findall(_CODE.sub("", text))
    return [target for link, _ in links if (target := _target(origin, link)) is not None]


def _target(origin: str, link: str) -> str | None:
    """The linked file's path in the repository; None for other hosts and what is not there."""
    path = _path(origin, link)
    if path is None:
        return None
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    return path if (ROOT / path).is_file() else None


def _path(origin: str, link: str) -> str | None:
    if re.match(r"[a-z]+:", link):
        return None
    return os.path.normpath(Path(origin).parent / link)
