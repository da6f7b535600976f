"""Structural tags: free text with parts that have a fixed beginning, content by a schema or pattern, and end.

Two forms, as vLLM accepts them. The first one names `structures` and `triggers`:

    {"type": "structural_tag", "triggers": ["<call="],
     "structures": [{"begin": "<call=f>", "schema": {...}, "end": "</call>"}]}

The second one (xgrammar) has a `format`, whose type is one of `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from octavo_inference.grammar.json_schema import check_schema
from octavo_inference.grammar.refusal import refusal
from octavo_inference.grammar.sources import FIXED, JsonStyle, json_schema_rule, literal, regex_rule

FORMATS = (
    "const_string", "json_schema", "regex", "any_text", "sequence", "or", "tag", "triggered_tags",
    "tags_with_separator",
)  # fmt: skip
MAX_TAGS = 256
MAX_NESTING = 16
_ANY = r"/(.|\n)*/"


def structural_tag_grammar(tag: Mapping[str, Any], param: str, style: JsonStyle = FIXED) -> str:
    """The grammar of a structural tag in either form. Raises `RequestError`."""
    writer = _Writer(param, style)
    if "format" in tag:
        _only(tag, {"type", "format"}, param)
        start = writer.format(tag["format"], f"{param}.format", 1)
    else:
        _only(tag, {"type", "structures", "triggers"}, param)
        tags = []
        for number, entry in enumerate(_list(tag, "structures", param)):
            where = f"{param}.structures[{number}]"
            _only(entry, {"begin", "schema", "end"}, where)
            content = {"type": "json_schema", "json_schema": entry.get("schema")}
            tags.append({"begin": entry.get("begin"), "content": content, "end": entry.get("end")})
        start = writer.triggered(tags, _list(tag, "triggers", param), f"{param}.structures", 1)
    return f"start: {start}\n" + "".join(f"{rule}\n" for rule in writer.rules)


class _Writer:
    """Writes formats as Lark expressions; `rules` are those that they refer to."""

    def __init__(self, param: str, style: JsonStyle) -> None:
        self.rules: list[str] = []
        self._param = param
        self._style = style

    def format(self, node: Any, where: str, nesting: int) -> str:
        kind = _object(node, where).get("type")
        if nesting > MAX_NESTING:
            _refuse(where, f"more than {MAX_NESTING} formats inside each other")
        if kind in {"sequence", "or"}:
            _only(node, {"type", "elements"}, where)
            elements = _list(node, "elements", where)
            parts = [self.format(part, f"{where}.elements[{n}]", nesting + 1) for n, part in enumerate(elements)]
            return "(" + (" " if kind == "sequence" else " | ").join(parts) + ")"
        if kind == "tag":
            return self.tag(node, where, nesting)
        if kind == "triggered_tags":
            _only(node, {"type", "triggers", "tags", "at_least_one", "stop_after_first"}, where)
            return self.triggered(
                _list(node, "tags", where),
                _list(node, "triggers", where),
                f"{where}.tags",
                nesting,
                least=_flag(node, "at_least_one", where),
                single=_flag(node, "stop_after_first", where),
            )
        if kind == "tags_with_separator":
            return self._separated(node, where, nesting)
        return self._plain(node, kind, where)

    def _plain(self, node: Any, kind: object, where: str) -> str:
        """A format without others in it."""
        if kind == "const_string":
            _only(node, {"type", "value"}, where)
            return literal(_text(node, "value", where))
        if kind == "json_schema":
            _only(node, {"type", "json_schema"}, where)
            schema = node.get("json_schema")
            check_schema(schema, f"{where}.json_schema")
            return json_schema_rule(schema, self._style)
        if kind == "regex":
            _only(node, {"type", "pattern"}, where)
            return regex_rule(_text(node, "pattern", where), f"{where}.pattern")
        if kind == "any_text":
            _only(node, {"type"}, where)
            return _ANY
        return _refuse(where, f"type {str(kind)[:64]!r} is not supported; supported: {', '.join(FORMATS)}")

    def tag(self, node: Any, where: str, nesting: int, trigger: str = "") -> str:
        """A tag behind its trigger, which is the first part of its beginning."""
        _only(node, {"type", "begin", "content", "end"}, where)
        begin, end = _text(node, "begin", where)[len(trigger) :], _text(node, "end", where)
        parts = [literal(begin)] if begin else []
        content = _object(node.get("content"), f"{where}.content")
        if content.get("type") == "any_text" and end:
            parts.append(self._until(end))
        else:
            parts.append(self.format(content, f"{where}.content", nesting + 1))
            parts += [literal(end)] if end else []
        return "(" + " ".join(parts) + ")"

    def triggered(
        self,
        tags: Sequence[Any],
        triggers: Sequence[Any],
        where: str,
        nesting: int,
        *,
        least: bool = False,
        single: bool = False,
    ) -> str:
        """Free text, in which each trigger begins a tag. Without `least`, there may be no tag."""
        if len(tags) > MAX_TAGS or len(triggers) > MAX_TAGS:
            _refuse(where, f"more than {MAX_TAGS} tags or triggers")
        options: dict[str, list[str]] = {}
        for number, tag in enumerate(tags):
            begin = _text(_object(tag, f"{where}[{number}]"), "begin", f"{where}[{number}]")
            trigger = next((t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), None)
            if trigger is None:
                _refuse(f"{where}[{number}]", f"begin {begin[:64]!r} starts with none of the triggers")
            options.setdefault(trigger, []).append(self.tag(tag, f"{where}[{number}]", nesting, trigger))
        if not options:
            _refuse(where, "no tags; give at least one")
        bodies = {trigger: "(" + " | ".join(found) + ")" for trigger, found in options.items()}
        tagged = [f"{self._until(trigger)} {body}" for trigger, body in bodies.items()]
        later = self._named("(" + " | ".join(tagged) + ")")
        first = "(" + " | ".join(f"{literal(trigger)} {body}" for trigger, body in bodies.items()) + ")"
        if single:
            return first if least else f"({later} | {_ANY})"
        return f"({first if least else ''} {later}* {_ANY})"

    def _separated(self, node: Any, where: str, nesting: int) -> str:
        _only(node, {"type", "tags", "separator", "at_least_one", "stop_after_first"}, where)
        tags = [self.tag(tag, f"{where}.tags[{n}]", nesting) for n, tag in enumerate(_list(node, "tags", where))]
        if not tags or len(tags) > MAX_TAGS:
            _refuse(where, f"give 1 to {MAX_TAGS} tags")
        tag = self._named("(" + " | ".join(tags) + ")")
        separator = literal(_text(node, "separator", where))
        more = "" if _flag(node, "stop_after_first", where) else f" ({separator} {tag})*"
        return f"({tag}{more})" + ("" if _flag(node, "at_least_one", where) else "?")

    def _until(self, text: str) -> str:
        """Text up to the first occurrence of another one, and that."""
        name = f"t{len(self.rules)}"
        self.rules.append(f"{name}[lazy]: {_ANY} {literal(text)}")
        return name

    def _named(self, expression: str) -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name


def _refuse(where: str, problem: str) -> NoReturn:
    raise refusal(where, problem)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        _refuse(where, "it must be an object")
    return value


def _only(value: Any, names: set[str], where: str) -> None:
    unknown = next((name for name in _object(value, where) if name not in names), None)
    if unknown is not None:
        _refuse(where, f"field {str(unknown)[:64]!r} is not supported; supported: {', '.join(sorted(names))}")


def _list(value: Mapping[str, Any], name: str, where: str) -> Sequence[Any]:
    found = value.get(name)
    if not isinstance(found, list) or not found:
        _refuse(f"{where}.{name}", "it must be a list with at least one entry")
    return found


def _text(value: Mapping[str, Any], name: str, where: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        _refuse(f"{where}.{name}", "it must be a text")
    return found


def _flag(value: Mapping[str, Any], name: str, where: str) -> bool:
    found = value.get(name, False)
    if not isinstance(found, bool):
        _refuse(f"{where}.{name}", "it must be true or false")
    return found
