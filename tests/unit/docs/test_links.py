"""A link leads somewhere, on the site and in the repository."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.documents import OTHERS, PAGES, ROOT, SITE, anchors, links, name, spans, unfenced

FOLDERS = (
    "bench|charts|common|crds|docs|examples|gateway|inference|operator|protocol|requirements|simulator|tests|tools"
)


def broken(page: Path, target: str) -> bool:
    """Whether a link of a page has no file, or its file has no such heading."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return not file.exists() or bool(anchor and file.suffix == ".md" and anchor not in anchors(file))


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name)
def test_links_and_anchors_resolve(page: Path) -> None:
    assert not [target for target in links(page) if broken(page, target)]


def test_a_broken_link_would_be_noticed() -> None:
    page = ROOT / "docs/index.md"
    assert broken(page, "nowhere.md")
    assert broken(page, "concepts.md#nowhere")
    assert not broken(page, "concepts.md#a-request")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = {span for span in spans(page) if re.fullmatch(rf"(?:{FOLDERS})/[\w./-]*[\w-]", span)}
    named -= {"tests/unit/PART", "operator/__init__.py"}  # a placeholder, and a file that must not exist
    if page.name == "breaking.md":  # names packages without their prefix
        named = {span for span in named if span.startswith("tests/")}
    if page.name == "track-record.md":  # `gateway/…` are names of fields and paths of HTTP, too
        named = {span for span in named if span.endswith((".py", ".md", ".yaml"))}
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(pages) == sorted(str(page.relative_to(ROOT / "docs")) for page in SITE)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lists_and_tables_follow_an_empty_line(page: Path) -> None:
    """mkdocs takes them for text otherwise, where the repository's viewer does not."""
    lines = unfenced(page).splitlines()
    for number, (before, line) in enumerate(pairwise(lines), 2):
        if re.match(r"[-*] |1\. ", line) and before.strip():
            assert re.match(r" {2,}|[-*] |\d+\. ", before), f"{name(page)}:{number}: {line}"
        if line.startswith("|") and before.strip():
            assert before.startswith("|"), f"{name(page)}:{number}: {line}"
