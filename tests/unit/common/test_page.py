"""The files of the page: nothing from elsewhere, and every field has a name."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from octavo_common.page import FILES

HTML, STYLE, SCRIPT = (file.read().decode() for file in FILES)


class Elements(HTMLParser):
    """Tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


ELEMENTS = Elements(HTML).found
IDS = {attributes["id"] for _, attributes in ELEMENTS if "id" in attributes}


def test_nothing_comes_from_other_hosts_and_nothing_is_inline() -> None:
    assert not re.search(r"https?://", HTML + SCRIPT + STYLE)
    for tag, attributes in ELEMENTS:
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert tag != "style"
        assert tag != "script" or attributes["src"]


def test_every_field_has_a_label_and_the_script_knows_the_elements() -> None:
    labelled = {attributes["for"] for tag, attributes in ELEMENTS if tag == "label"}
    fields = {attributes["id"] for tag, attributes in ELEMENTS if tag in {"input", "textarea", "select"}}
    assert fields <= labelled
    assert set(re.findall(r'at\("([\w-]+)"\)', SCRIPT)) <= IDS
    assert {attributes["aria-describedby"] for _, attributes in ELEMENTS if "aria-describedby" in attributes} <= IDS


def test_the_files_name_each_other() -> None:
    paths = {file.path.removeprefix("/") for file in FILES if file.path != "/"}
    named = {attributes.get(name) for _, attributes in ELEMENTS for name in ("src", "href")}
    assert paths <= named
