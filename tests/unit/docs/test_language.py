"""Documents use the field's words, each in one spelling."""

import re
from pathlib import Path

import pytest
from tests.support.documents import ROOT, SITE, name, prose, text

# Programs write these pages.
GENERATED = {ROOT / "docs" / each for each in ("reference/api.md", "evidence/kernels.md", "evidence/kill-points.md")}
PAGES = [page for page in (*SITE, ROOT / "README.md", ROOT / "CONTRIBUTING.md") if page not in GENERATED]

FORBIDDEN = {
    r"whoever|whatever|nobody(?:'s)?": "name the subject",
    r"anew": "again",
    r"for ever": "forever, without end",
    r"(?:is|are|was|were|be) told|tells?|told": "reports, sends, names",
    r"(?:can|cannot|could|may) be had|is had": "is available",
    r"hears?|heard": "receives",
    r"the books|books are": "invariants, accounting",
    r"that which": "name the thing",
    r"nine of ten": "p90",
    r"beside": "next to, against, in addition to",
    r"what not": "name it",
    r"held by (?:a |the )?tests?": "verified by",
    r"lies": "is",
}
# Variant -> the spelling of docs/glossary.md.
SPELLINGS = {
    r"time-outs?": "timeout",
    r"tokenis\w+|detokenis\w+": "tokenize",
    r"quantis\w+": "quantized",
    r"KV-cache": "KV cache",
    r"time to the first token": "time to first token",
    r"auto-?scaller|auto-scaler": "autoscaler",
    r"roll-outs?": "rollout",
    r"preempts? out|pre-empt\w*": "preempt",
    r"life cycle": "lifecycle",
    r"load-report": "load report",
}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_forbidden_words_do_not_appear(page: Path) -> None:
    for number, line in enumerate(prose(page).splitlines(), 1):
        for words, instead in (FORBIDDEN | SPELLINGS).items():
            found = re.search(rf"\b(?:{words})\b", line, re.IGNORECASE)
            assert not found, f"{name(page)}:{number}: {found[0]!r}; write: {instead}"


@pytest.mark.parametrize("page", [*SITE, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=name)
def test_no_placeholder_is_left(page: Path) -> None:
    assert "@@" not in text(page)


def sentences(page: Path) -> list[str]:
    """Sentences of paragraphs and lists; tables and headings are none."""
    lines = [line for line in prose(page).splitlines() if not line.startswith(("|", "#", "<!--", "!["))]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    return [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.:;!?])\**\s+", " ".join(paragraph.split()))
    ]


# Pages for users.
SHORT = [
    page
    for page in PAGES
    if page == ROOT / "README.md" or page.parent.name in {"docs", "guides", "operations", "reference"}
]


@pytest.mark.parametrize("page", SHORT, ids=name)
def test_sentences_for_users_are_short(page: Path) -> None:
    long = [sentence for sentence in sentences(page) if len(sentence.split()) > 25]
    assert not long


def test_terms_of_the_glossary_are_sorted_and_used() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", text(ROOT / "docs/glossary.md"), re.MULTILINE)
    assert terms == sorted(terms, key=str.lower)
    everywhere = " ".join(text(page).lower() for page in PAGES if page.name != "glossary.md")
    unused = [term for term in terms if not all(word.lower() in everywhere for word in term.split(", "))]
    assert not unused
