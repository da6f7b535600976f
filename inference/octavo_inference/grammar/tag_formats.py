"""The formats of structural tags as Lark: xgrammar's, as far as a grammar can say them.

Free text has no end of its own. The lexer takes as much of it as it can get, so what follows must be known: the texts
`ends`. Such a text and the free text before it are one lazy terminal, which ends where that text comes first. Text
never has special tokens in it, so a token needs no such care.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octavo_inference.grammar import tag_fields as fields
from octavo_inference.grammar.ebnf import ebnf_to_lark
from octavo_inference.grammar.json_schema import check_schema
from octavo_inference.grammar.pattern_size import MAX_PATTERN_SIZE
from octavo_inference.grammar.sources import JsonStyle, is_ebnf, json_schema_rule, lark, literal, regex_rule
from octavo_inference.grammar.tag_fields import either, one_of, refuse

MAX_TAGS = 256
MAX_NESTING = 16
MAX_REPEATS = 1000
MAX_WRITTEN = 1 << 23
"""Characters of a tag as a grammar, with those inside of others counted again."""

_ANY = r"/(.|\n)*/"
_OPEN = ("any_text", "any_tokens", "triggered_tags", "dispatch", "token_triggered_tags")
Ends = tuple[str, ...]


class FormatWriter:
    """Writes formats as Lark expressions; `rules` are those that they refer to. `param` is the tag's field."""

    def __init__(self, style: JsonStyle, param: str) -> None:
        self.rules: list[str] = []
        self._param = param
        self._style = style
        self._left = MAX_WRITTEN
        self._writers: dict[str, Callable[[Any, str, int, Ends], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "optional": self._optional,
            "plus": self._repeated,
            "star": self._repeated,
            "repeat": self._repeated,
            "tag": self.tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._separated,
            "dispatch": self._dispatch,
            "token": self._token,
            "any_tokens": self._any_tokens,
            "token_triggered_tags": self._token_triggered_tags,
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        """The types of formats."""
        return tuple(self._writers)

    def format(self, node: Any, where: str, nesting: int, ends: Ends = ()) -> str:
        """The expression of a format, with one of the texts `ends` behind it if there are any."""
        kind = fields.fields_of(node, where).get("type")
        if nesting > MAX_NESTING:
            refuse(where, f"more than {MAX_NESTING} formats inside each other")
        if not isinstance(kind, str) or kind not in self._writers:
            refuse(where, f"type {str(kind)[:64]!r} is not supported; supported: {', '.join(self.kinds)}")
        written = self._writers[kind](node, where, nesting, ends)
        self._count(written)
        return written

    def tag(self, node: Any, where: str, nesting: int, ends: Ends, begun: str = "") -> str:
        """A tag; `begun` is the first part of its beginning that has been written."""
        fields.only(node, ("type", "begin", "content", "end"), where)
        if node.get("type", "tag") != "tag":
            refuse(f"{where}.type", "it must be 'tag'")
        begin, end = node.get("begin"), node.get("end")
        opening = _token_of(begin, f"{where}.begin")
        if opening is None:
            rest = fields.text(node, "begin", where)[len(begun) :]
            opening = literal(rest) if rest else ""
        closing = _token_of(end, f"{where}.end")
        own: Ends = ()
        if closing is None:
            own = fields.texts(node, "end", where) if isinstance(end, list) else (fields.text(node, "end", where),)
            own = () if own == ("",) else own
        # Without an end of its own, the tag ends where what is around it does.
        content = self.format(node.get("content"), f"{where}.content", nesting + 1, own or (() if closing else ends))
        behind = _behind(ends) if own or closing else ""
        return "(" + " ".join(filter(None, (opening, content, closing, behind))) + ")"

    def triggered(
        self,
        node: Any,
        where: str,
        nesting: int,
        ends: Ends = (),
        *,
        least: bool = False,
        single: bool = False,
        excludes: Ends = (),
        name: str = "tags",
    ) -> str:
        """Free text, in which each trigger begins a tag. Without `least`, there may be no tag."""
        triggers = fields.entries(node, "triggers", where)
        options: dict[str, list[str]] = {}
        for place, tag in _tags(node, where, triggers, name):
            begin = fields.text(tag, "begin", place)
            trigger = next((t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), None)
            if trigger is None:
                refuse(place, f"begin {begin[:64]!r} starts with none of the triggers")
            options.setdefault(trigger, []).append(self.tag(tag, place, nesting, (), trigger))
        bodies = {trigger: either(found) for trigger, found in options.items()}
        first = either([f"{literal(trigger)} {body}" for trigger, body in bodies.items()])
        later = either([f"{self._until((trigger,), excludes)} {body}" for trigger, body in bodies.items()])
        return self._in_text(first, later, ends, excludes, least=least, single=single)

    def _in_text(self, first: str, later: str, ends: Ends, excludes: Ends, *, least: bool, single: bool) -> str:
        """Free text and parts in it: `first` without text before it, `later` with some."""
        part = self._named(later)
        text = self._free(ends, excludes)
        if single:
            return f"({first} {_behind(ends)})" if least else f"({part} {_behind(ends)} | {text})"
        return f"(({first}) {part}* {text})" if least else f"({part}* {text})"

    def _const_string(self, node: Any, where: str, _: int, ends: Ends) -> str:
        fields.only(node, ("type", "value"), where)
        return f"{literal(fields.text(node, 'value', where))} {_behind(ends)}"

    def _json_schema(self, node: Any, where: str, _: int, ends: Ends) -> str:
        fields.only(node, ("type", "json_schema", "style", "any_order"), where)
        if node.get("style", "json") != "json":
            refuse(f"{where}.style", f"{str(node['style'])[:64]!r} is not supported; supported: 'json'")
        # In the order of the schema, the properties are in any order.
        fields.flag(node, "any_order", where)
        schema = node.get("json_schema")
        check_schema(schema, f"{where}.json_schema")
        return f"{json_schema_rule(schema, self._style)} {_behind(ends)}"

    def _regex(self, node: Any, where: str, _: int, ends: Ends) -> str:
        fields.only(node, ("type", "pattern"), where)
        pattern = regex_rule(fields.text(node, "pattern", where), f"{where}.pattern")
        return self._terminal(f"{pattern} {one_of(ends)}", "[lazy]") if ends else pattern

    def _grammar(self, node: Any, where: str, _: int, ends: Ends) -> str:
        fields.only(node, ("type", "grammar"), where)
        place = f"{where}.grammar"
        given = lark(fields.text(node, "grammar", where), place)
        return f"%lark {{\n{ebnf_to_lark(given, place) if is_ebnf(given) else given}\n}} {_behind(ends)}"

    def _any_text(self, node: Any, where: str, _: int, ends: Ends) -> str:
        fields.only(node, ("type", "excludes", "max_chars"), where)
        most = None
        if node.get("max_chars") is not None:
            most = fields.number(node, "max_chars", where, 0, MAX_PATTERN_SIZE)
        return self._free(ends, fields.texts(node, "excludes", where), most)

    def _sequence(self, node: Any, where: str, nesting: int, ends: Ends) -> str:
        fields.only(node, ("type", "elements"), where)
        elements = fields.entries(node, "elements", where)
        parts = []
        begun = ""
        for number, element in enumerate(elements):
            place = f"{where}.elements[{number}]"
            following = elements[number + 1] if number + 1 < len(elements) else None
            until: Ends = ends
            behind = ""
            if following is not None:
                behind = self._opening(element, following, place)
                until = (behind,) if behind else ()
            if begun and element["type"] == "tag":
                parts.append(self.tag(element, place, nesting + 1, until, begun))
            elif begun:
                fields.only(element, ("type", "value"), place)
                parts.append(_behind(until))
            else:
                parts.append(self.format(element, place, nesting + 1, until))
            begun = behind
        return "(" + " ".join(filter(None, parts)) + ")"

    def _opening(self, element: Any, following: Any, place: str) -> str:
        """The text by which free text in a sequence ends: the first one of what follows. Empty where none is needed."""
        if not _is_open(element):
            return ""
        kind = fields.fields_of(following, place).get("type")
        found = {"const_string": "value", "tag": "begin"}.get(str(kind))
        if found is not None and isinstance(following.get(found), str) and following[found]:
            return str(following[found])
        if kind == "token" or (kind == "tag" and isinstance(following.get("begin"), dict)):
            return ""
        return refuse(place, "text without an end must be last, or before a const_string, a tag or a token")

    def _or(self, node: Any, where: str, nesting: int, ends: Ends) -> str:
        fields.only(node, ("type", "elements"), where)
        elements = enumerate(fields.entries(node, "elements", where))
        parts = [self.format(part, f"{where}.elements[{n}]", nesting + 1, ends) for n, part in elements]
        return "(" + " | ".join(parts) + ")"

    def _optional(self, node: Any, where: str, nesting: int, ends: Ends) -> str:
        fields.only(node, ("type", "content"), where)
        content = self.format(node.get("content"), f"{where}.content", nesting + 1, ends)
        return f"({content} | {_behind(ends)})" if ends else f"({content})?"

    def _repeated(self, node: Any, where: str, nesting: int, ends: Ends) -> str:
        names = ("type", "content", "min", "max") if node["type"] == "repeat" else ("type", "content")
        fields.only(node, names, where)
        counts = {"plus": "+", "star": "*"}.get(node["type"])
        if counts is None:
            low = fields.number(node, "min", where, 0, MAX_REPEATS)
            high = "" if node.get("max") == -1 else fields.number(node, "max", where, low, MAX_REPEATS)
            counts = f"{{{low},{high}}}"
        return f"({self._closed(node.get('content'), f'{where}.content', nesting)}){counts} {_behind(ends)}"

    def _triggered_tags(self, node: Any, where: str, nesting: int, ends: Ends) -> str:
        fields.only(node, ("type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"), where)
        least, single = (fields.flag(node, name, where) for name in ("at_least_one", "stop_after_first"))
        excludes = fields.texts(node, "excludes", where)
        return self.triggered(node, where, nesting, ends, least=least, single=single, excludes=excludes)

    def _separated(self, node: Any, where: str, nesting: int, ends: Ends) -> str:
        fields.only(node, ("type", "tags", "separator", "at_least_one", "stop_after_first"), where)
        tag = self._named(either([self.tag(tag, place, nesting, ()) for place, tag in _tags(node, where)]))
        separator = literal(fields.text(node, "separator", where))
        more = "" if fields.flag(node, "stop_after_first", where) else f" ({separator} {tag})*"
        count = "" if fields.flag(node, "at_least_one", where) else "?"
        return f"({tag}{more}){count} {_behind(ends)}"

    def _dispatch(self, node: Any, where: str, nesting: int, ends: Ends) -> str:
        fields.only(node, ("type", "rules", "loop", "excludes"), where)
        excludes = fields.texts(node, "excludes", where)
        later = []
        for number, rule in enumerate(fields.entries(node, "rules", where)):
            place = f"{where}.rules[{number}]"
            if not isinstance(rule, list) or len(rule) != 2 or not isinstance(rule[0], str) or not rule[0]:
                refuse(place, "it must be a list of a text and a format")
            later.append(f"{self._until((rule[0],), excludes)} {self._closed(rule[1], f'{place}[1]', nesting)}")
        single = not fields.flag(node, "loop", where, default=True)
        return self._in_text("", either(later), ends, excludes, least=False, single=single)

    def _token(self, node: Any, where: str, _: int, ends: Ends) -> str:
        fields.only(node, ("type", "token"), where)
        return f"{fields.token(node.get('token'), f'{where}.token')} {_behind(ends)}"

    def _any_tokens(self, node: Any, where: str, _: int, ends: Ends) -> str:
        fields.only(node, ("type", "exclude_tokens"), where)
        _check_excluded(node, where)
        return self._free(ends)

    def _token_triggered_tags(self, node: Any, where: str, nesting: int, ends: Ends) -> str:
        names = ("type", "trigger_tokens", "tags", "at_least_one", "stop_after_first", "exclude_tokens")
        fields.only(node, names, where)
        _check_excluded(node, where)
        triggers = fields.entries(node, "trigger_tokens", where)
        tags = []
        for place, tag in _tags(node, where, triggers):
            begin = tag.get("begin")
            if _token_of(begin, f"{place}.begin") is None or begin.get("token") not in triggers:
                refuse(f"{place}.begin", "it must be a token of trigger_tokens")
            tags.append(self.tag(tag, place, nesting, ()))
        first = self._named(either(tags))
        least, single = (fields.flag(node, name, where) for name in ("at_least_one", "stop_after_first"))
        return self._in_text(first, f"{self._terminal(_ANY)} {first}", ends, (), least=least, single=single)

    def _closed(self, node: Any, where: str, nesting: int) -> str:
        """A format that is no free text, so that more may follow."""
        if _is_open(node):
            refuse(where, "text without an end cannot be followed by more; put it into a tag")
        return self.format(node, where, nesting + 1)

    def _free(self, ends: Ends, excludes: Ends = (), most: int | None = None) -> str:
        if ends:
            return self._until(ends, excludes, most)
        text = _text(excludes, most)
        return self._terminal(text) if excludes else text

    def _until(self, ends: Ends, excludes: Ends = (), most: int | None = None) -> str:
        """Text up to the first occurrence of one of some texts, and that."""
        text = _text(excludes, most)
        if excludes:
            text = self._terminal(text)
        return self._terminal(f"{text} {one_of(ends)}", "[lazy]")

    def _count(self, written: str) -> None:
        """Refuse a tag that takes too much: what follows is written behind each part, so ends and parts multiply."""
        self._left -= len(written)
        if self._left < 0:
            problem = f"more than {MAX_WRITTEN} characters as a grammar; give fewer or shorter parts, ends or excludes"
            refuse(self._param, problem)

    def _terminal(self, body: str, options: str = "") -> str:
        self._count(body)
        name = f"{'t' if options else 'T'}{len(self.rules)}"
        self.rules.append(f"{name}{options}: {body}")
        return name

    def _named(self, expression: str) -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name


def _text(excludes: Ends, most: int | None) -> str:
    """A terminal: text of at most so many characters without these texts."""
    text = _ANY if most is None else rf"/(.|\n){{0,{most}}}/"
    return " & ".join([text, *(f"~({_ANY} {literal(excluded)} {_ANY})" for excluded in excludes)])


def _tags(node: Any, where: str, triggers: Sequence[Any] = (), name: str = "tags") -> list[tuple[str, Any]]:
    """The tags of a format, each with its place."""
    found = fields.entries(node, name, where)
    if len(found) > MAX_TAGS or len(triggers) > MAX_TAGS:
        refuse(where, f"more than {MAX_TAGS} tags or triggers")
    places = [f"{where}.{name}[{number}]" for number in range(len(found))]
    return [(place, fields.fields_of(tag, place)) for place, tag in zip(places, found, strict=True)]


def _behind(ends: Ends) -> str:
    return one_of(ends) if ends else ""


def _token_of(given: Any, where: str) -> str | None:
    """The expression of a token that begins or ends a tag; None if a text does."""
    if not isinstance(given, dict):
        return None
    fields.only(given, ("type", "token"), where)
    if given.get("type") != "token":
        refuse(f"{where}.type", "it must be 'token'")
    return fields.token(given.get("token"), f"{where}.token")


def _check_excluded(node: Any, where: str) -> None:
    """Free text never has special tokens, so that excluding them changes nothing. No other token can be excluded."""
    for given in fields.texts(node, "exclude_tokens", where):
        fields.token(given, f"{where}.exclude_tokens")


def _is_open(node: Any, nesting: int = 1) -> bool:
    """True if a format may end with free text."""
    if not isinstance(node, dict):
        return False
    if nesting > MAX_NESTING:
        return False  # it is refused where it is written
    kind = node.get("type")
    if kind == "triggered_tags":
        return not (node.get("at_least_one") and node.get("stop_after_first"))
    if kind == "tag":
        return node.get("end") == "" and _is_open(node.get("content"), nesting + 1)
    if kind == "optional":
        return _is_open(node.get("content"), nesting + 1)
    elements = node.get("elements")
    if kind in ("sequence", "or") and isinstance(elements, list):
        return any(_is_open(element, nesting + 1) for element in (elements if kind == "or" else elements[-1:]))
    return kind in _OPEN
