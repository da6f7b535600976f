"""Grammars as text for llguidance: Lark, whose expressions may hold JSON schemas and regular expressions.

An expression matches a piece of text and can stand in a larger grammar; `whole` makes a grammar of one. No function
here compiles: `Vocabulary.compile` does, and refuses what these functions cannot see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo_inference.grammar.json_schema import Schema
from octavo_inference.grammar.pattern_size import check_pattern
from octavo_inference.grammar.plain_schema import plain_schema
from octavo_inference.grammar.refusal import refusal

MAX_GRAMMAR = 64 * 1024
"""Bytes of a grammar or regular expression in a request."""
MAX_CHOICES = 10_000
MAX_CHOICE_BYTES = 1 << 20
MAX_WHITESPACE_PATTERN = 256

# An escaped character, or one that cannot stand in a regular expression of Lark.
_SLASHES = re.compile(r"(\\.)|[/\n]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """Separators of JSON output. `whitespace` is a regular expression for more of it between tokens; None: no more.

    The default is one space behind each comma and colon. Models that may choose tend to repeat whitespace without end,
    and fixed separators follow by force, without sampling.
    """

    item_separator: str = ", "
    key_separator: str = ": "
    whitespace: str | None = None


FIXED = JsonStyle()
COMPACT = JsonStyle(",", ":")
FREE = JsonStyle(",", ":", r"[ \n\r\t]+")


def whole(expression: str) -> str:
    """The grammar of an answer that is one expression."""
    return f"start: {expression}\n"


def literal(text: str) -> str:
    """The expression of a text."""
    return json.dumps(text)


def json_schema_rule(schema: Schema, style: JsonStyle = FIXED) -> str:
    """The expression of JSON that satisfies a schema, checked before (`check_schema`)."""
    options: dict[str, Any] = {
        "item_separator": style.item_separator,
        "key_separator": style.key_separator,
        "whitespace_flexible": style.whitespace is not None,
    }
    if style.whitespace is not None:
        options["whitespace_pattern"] = style.whitespace
    keywords = plain_schema(schema) if isinstance(schema, Mapping) else {}
    return "%json " + json.dumps({**keywords, "x-guidance": options})


def json_object_rule(style: JsonStyle = FIXED) -> str:
    """The expression of any JSON object."""
    return json_schema_rule({"type": "object"}, style)


def json_style(whitespace_pattern: str | None, disable_any_whitespace: bool | None, param: str) -> JsonStyle:
    """The style that a request asks for. Raises `RequestError`.

    `disable_any_whitespace` true gives the shortest form, false lets the model choose whitespace; by default it is
    fixed (`JsonStyle`).
    """
    if whitespace_pattern is None:
        return FIXED if disable_any_whitespace is None else COMPACT if disable_any_whitespace else FREE
    if disable_any_whitespace:
        raise refusal(param, "whitespace_pattern and disable_any_whitespace contradict each other; give one")
    if len(whitespace_pattern) > MAX_WHITESPACE_PATTERN:
        raise refusal(
            param, f"whitespace_pattern has {len(whitespace_pattern)} characters; the limit is {MAX_WHITESPACE_PATTERN}"
        )
    return JsonStyle(",", ":", whitespace_pattern)


def regex_rule(pattern: str, param: str) -> str:
    """The expression of a regular expression, in the syntax of Rust, which must match all of the text.

    Raises `RequestError` if it is too large.
    """
    _check_size(pattern, MAX_GRAMMAR, param)
    check_pattern(pattern, param)
    return (
        "/" + _SLASHES.sub(lambda found: found[0] if found[1] else {"/": r"\/", "\n": r"\n"}[found[0]], pattern) + "/"
    )


def choice_rule(choices: Iterable[str], param: str) -> str:
    """The expression of exactly one of some texts. Raises `RequestError` if there are none, or too many."""
    given = list(dict.fromkeys(choices))
    if not given:
        raise refusal(param, "no choices; give at least one text")
    if len(given) > MAX_CHOICES:
        raise refusal(param, f"{len(given)} choices; the limit is {MAX_CHOICES}")
    # One regular expression: the parser bounds the alternatives of a rule, and takes milliseconds for each thousand.
    _check_size("".join(given), MAX_CHOICE_BYTES, param)
    pattern = "|".join(map(_quoted, given))
    return f"/(?:{pattern})/" if pattern else literal("")


def lark(text: str, param: str) -> str:
    """A grammar in Lark's syntax, with `start` as its first rule. Raises `RequestError` if it is too large."""
    _check_size(text, MAX_GRAMMAR, param)
    if text.lstrip()[:1] in {"{", ""}:
        raise refusal(param, "not a grammar; give one in Lark's syntax with a rule 'start: …' or in EBNF")
    return text


def is_ebnf(text: str) -> bool:
    """True for the EBNF of llama.cpp (GBNF), whose rules have `::=`, rather than Lark."""
    return re.search(r"(?m)^\s*[\w-]+\s*::=", text) is not None


def _quoted(text: str) -> str:
    """A text as a regular expression inside of slashes."""
    return "".join(c if c.isalnum() or c == " " else f"\\x{{{ord(c):x}}}" for c in text)


def _check_size(text: str, limit: int, param: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise refusal(param, "it has half of a surrogate pair, which is no character; send valid Unicode") from None
    if size > limit:
        raise refusal(param, f"it has {size} bytes; the limit is {limit}")
