"""Every example in the documents is run, and what a page shows as its output is compared."""

import re
from pathlib import Path

import pytest
import yaml
from tests.support.documents import ROOT, SITE, name, text
from tests.support.examples import ADDRESS, LANGUAGES, OUTPUTS, Example, examples, fences

# Blocks without a language are commands of operators, which no test runs, and lines of a log.
KNOWN = {*LANGUAGES, *OUTPUTS, "yaml", ""}
NOT_RUN = re.compile(r"(?:octavo-server|octavo-gateway|pip install|npm install) ")


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name Python objects."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def guides_to_apis() -> list[Path]:
    """The pages of the navigation below "APIs"."""
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)  # noqa: S506
    [guides] = [entry["Guides"] for entry in config["nav"] if "Guides" in entry]
    [apis] = [entry["APIs"] for entry in guides if "APIs" in entry]
    return [ROOT / "docs" / path for entry in apis for path in entry.values()]


@pytest.mark.parametrize("page", SITE, ids=name)
def test_no_block_is_overlooked(page: Path) -> None:
    found = fences(page)
    assert {language for language, _ in found} <= KNOWN
    assert len(re.findall(r"^\s*(?:```|~~~)", text(page), re.MULTILINE)) == 2 * len(found)


@pytest.mark.parametrize("page", guides_to_apis(), ids=name)
def test_a_guide_to_an_api_has_examples_in_each_language(page: Path) -> None:
    for language in LANGUAGES:
        assert any(ADDRESS in example.code for example in examples(page, language)), language
    others = [line for language, code in fences(page) if not language for line in code.splitlines()]
    assert not [line for line in others if not NOT_RUN.match(line)]


@pytest.mark.parametrize("page", SITE, ids=name)
def test_examples_name_the_same_address(page: Path) -> None:
    """What the tests replace, so that none reaches for another server."""
    named = {host for language in LANGUAGES for each in examples(page, language) for host in hosts(each.code)}
    assert named <= {"localhost:8000", "localhost:8001"}


def hosts(code: str) -> set[str]:
    """Hosts of URLs, and what curl calls without a scheme."""
    return set(re.findall(r"(?:https?://|curl (?:-\S+ )*)([\w.-]+:\d+)", code))


@pytest.mark.parametrize(
    ("shown", "output", "fits"),
    [
        ("Paris", "Paris\n", True),
        ("Paris", "Rome\n", False),
        ("id …, Paris", "id 17, Paris", True),
        ('{"a": "…", "b": 1}', '{"a":"x","b":1}', True),
        ('{"a": "…", "b": 1}', '{"a":"x","b":2}', False),
        ("", "anything", True),
        ("", '{"error":{"message":"no"}}', False),
        ("", "", False),
    ],
)
def test_an_output_is_compared(shown: str, output: str, fits: bool) -> None:
    assert Example("sh", "", shown).fits(output) is fits
