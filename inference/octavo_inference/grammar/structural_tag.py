"""Structural tags: free text with parts that have a fixed beginning, content by a schema or pattern, and end.

Two forms, as vLLM accepts them. The first one names `structures` and `triggers`:

    {"type": "structural_tag", "triggers": ["<call="],
     "structures": [{"begin": "<call=f>", "schema": {...}, "end": "</call>"}]}

The second one (xgrammar) has a `format`: see `tag_formats`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_inference.grammar import tag_fields as fields
from octavo_inference.grammar.sources import FIXED, JsonStyle
from octavo_inference.grammar.tag_formats import FormatWriter


def structural_tag_grammar(tag: Mapping[str, Any], param: str, style: JsonStyle = FIXED) -> str:
    """The grammar of a structural tag in either form. Raises `RequestError`."""
    writer = FormatWriter(style, param)
    if "format" in tag:
        fields.only(tag, ("type", "format"), param)
        start = writer.format(tag["format"], f"{param}.format", 1)
    else:
        fields.only(tag, ("type", "structures", "triggers"), param)
        start = writer.triggered({**tag, "structures": _tags(tag, param)}, param, 1, name="structures")
    return f"start: {start}\n" + "".join(f"{rule}\n" for rule in writer.rules)


def _tags(tag: Mapping[str, Any], param: str) -> list[dict[str, Any]]:
    """The structures of the first form as tags of the second one."""
    tags = []
    for number, entry in enumerate(fields.entries(tag, "structures", param)):
        fields.only(entry, ("begin", "schema", "end"), f"{param}.structures[{number}]")
        content = {"type": "json_schema", "json_schema": entry.get("schema")}
        tags.append({"begin": entry.get("begin"), "content": content, "end": entry.get("end")})
    return tags
