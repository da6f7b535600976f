"""What documents say of the Makefile, the alerts and the chart is so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.documents import PAGES, ROOT, SITE, blocks, name, spans, text

TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
GROUPS = yaml.safe_load((ROOT / "charts/octavo/files/alerts.yaml").read_text())["groups"]
ALERTS = {rule["alert"] for group in GROUPS for rule in group["rules"]}
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "charts/octavo/values.yaml").read_text())


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_targets_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"(?:`|^ *|\$ )make ([a-z0-9-]+)", text(page), re.MULTILINE))
    assert named <= TARGETS


def test_alerts_have_an_entry_each_and_entries_an_alert() -> None:
    page = text(ROOT / "docs/operations/alerts.md")
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == ALERTS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_alerts_that_are_named_exist(page: Path) -> None:
    kinds = {"OctavoError"}
    assert set(re.findall(r"\bOctavo[A-Z]\w+", text(page))) <= ALERTS | kinds


def test_no_document_counts_alerts_or_reasons() -> None:
    """Such a number is wrong after the next change; nobody needs it."""
    count = re.compile(r"\b(?:\d+|[a-z]+teen|twenty)\s+(?:stable\s+)?(?:alerts|reasons|conditions)\b")
    assert not {name(page): found for page in PAGES if (found := count.findall(text(page)))}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "architecture.md"], ids=name)
def test_values_of_the_chart_that_are_named_exist(page: Path) -> None:
    for span in spans(page):
        head, *path = span.partition("=")[0].partition(":")[0].split(".")
        if head in VALUES and path and re.fullmatch(r"[\w.]+", span.partition("=")[0].partition(":")[0]):
            value: Any = VALUES[head]
            for step in path:
                assert isinstance(value, dict), span
                # What an administrator may name is open.
                assert step in value or not value, f"{name(page)}: `{span}` is no value of the chart"
                value = value.get(step, {})


@pytest.mark.parametrize("page", SITE, ids=name)
def test_yaml_and_json_in_documents_parse(page: Path) -> None:
    for block in blocks(page, "yaml"):
        assert list(yaml.safe_load_all(block))
    for block in blocks(page, "json"):
        json.loads(block)


def test_make_check_takes_the_same_time_wherever_it_is_said() -> None:
    """A machine's time has one place, the table of CONTRIBUTING.md."""
    makefile = (ROOT / "Makefile").read_text()
    said = re.search(r"^check:.*## (.*)$", makefile, re.MULTILINE)
    assert said
    assert "a minute" in said[1]
    assert re.search(r"^\| check \|.*\| 5\d s \|$", text(ROOT / "CONTRIBUTING.md"), re.MULTILINE)


def test_the_map_of_folders_is_complete() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))}
    named = re.findall(r"^\| (`[^|]*`) \|", text(ROOT / "CONTRIBUTING.md"), re.MULTILINE)
    assert folders - {"build", "dist"} <= {
        each.split("/")[0] for cell in named for each in re.findall(r"`([^`]+)`", cell)
    }


def test_the_lines_that_were_broken_are_counted() -> None:
    page = text(ROOT / "docs/evidence/breaking.md")
    missed, found = (re.findall(r"^\| `", part, re.MULTILINE) for part in page.split("\n## ")[1:3])
    said = re.search(r"found (\d+) of them and missed (\d+)", page)
    assert said
    assert (len(found), len(missed)) == (int(said[1]), int(said[2]))
    assert f"{len(found) + len(missed)} lines" in page
