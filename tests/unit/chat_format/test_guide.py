"""The guide names every format of tool calls and of thinking, and the reference every keyword of JSON schemas."""

import re

from tests.support.documents import ROOT, text

from octavo_inference.chat_format.formats.known import REASONING_FORMATS, TOOL_FORMATS
from octavo_inference.grammar.json_schema import FORMATS, SUPPORTED
from octavo_inference.grammar.sources import FIXED
from octavo_inference.grammar.tag_formats import FormatWriter

GUIDE = text(ROOT / "docs/guides/tools-and-structured-output.md")

REFERENCE = text(ROOT / "docs/reference/structured-output.md")


def rows(heading: str) -> str:
    """The rows of the table with this head."""
    return GUIDE.partition(heading)[2].partition("\n\n")[0]


def first_cells(heading: str) -> set[str]:
    """The code in the first cells of a table."""
    return {
        span
        for cell in re.findall(r"^\|([^|]*)\|", rows(heading), re.MULTILINE)
        for span in re.findall("`(.*?)`", cell)
    }


def test_formats_of_tool_calls_are_all_named() -> None:
    assert first_cells("| format | models |") == set(TOOL_FORMATS)


def test_formats_of_thinking_are_all_named() -> None:
    assert first_cells("| format | thinking is |") == set(REASONING_FORMATS)


def test_keywords_and_formats_of_schemas_are_all_named() -> None:
    supported, _, others = REFERENCE.partition("## JSON Schema\n")[2].partition("\n- `format`: ")
    assert set(re.findall(r"`([^`]+)`", supported)) == set(SUPPORTED)
    assert set(re.findall(r"`([^`]+)`", others.partition(". ")[0])) == set(FORMATS)


def test_formats_of_structural_tags_are_all_named() -> None:
    formats = REFERENCE.partition("## Structural tags\n")[2]
    cells = re.findall(r"(?m)^\| ((?:`\w+`(?:, )?)+) \|", formats.partition("```")[0])
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(FormatWriter(FIXED, "structural_tag").kinds)
