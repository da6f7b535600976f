"""The files of the page: nothing from elsewhere, and every field has a name."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec

from octavo_common.page import FILES
from octavo_common.page.rates import Rates, RecentRates, rates, rounded
from octavo_protocol.load import LoadReport

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


def report(at: float, generated: int, prompt: int = 0, hit: int = 0, start: float = 1.0) -> tuple[LoadReport, float]:
    numbers = {field.name: 0 for field in msgspec.structs.fields(LoadReport) if field.type is int}
    fields = {"start_time": start, "model": "m", "oldest_wait": 0.0, "ready": True, "draining": False}
    counters = {"generation_tokens": generated, "prompt_tokens": prompt, "prefix_hit_tokens": hit}
    return LoadReport(**numbers | fields | counters), at


def test_rates_are_those_of_the_last_seconds() -> None:
    recent = RecentRates()
    for at, generated, prompt, hit in (
        (0, 0, 0, 0),
        (20, 100, 10, 0),
        (25, 150, 50, 10),
        (25, 999, 0, 0),
        (30, 220, 90, 20),
    ):
        recent.add(*report(at, generated, prompt, hit))
    assert rates([recent]) == Rates(12.0, 0.25), "from 20 s on; a report that is known already changes nothing"
    assert rates([recent, recent]) == Rates(24.0, 0.25)
    assert rounded(rates([recent])) == (12, 0.25)


def test_counters_of_a_restarted_replica_are_not_compared_with_those_before() -> None:
    recent = RecentRates()
    recent.add(*report(1, 100))
    recent.add(*report(2, 10, start=2.0))
    assert rates([recent]) is None
    recent.add(*report(3, 14, start=2.0))
    assert rates([recent]) == Rates(4.0, None)
    assert rounded(None) == (None, None)
