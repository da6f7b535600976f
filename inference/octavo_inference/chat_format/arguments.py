"""Arguments that a model writes value by value, as one JSON object."""

from __future__ import annotations

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.readers import END, Reader, Sink, nowhere, until
from octavo_inference.chat_format.schema_types import as_json, escaped

_STRING = frozenset({"string"})


class Arguments:
    """The arguments of the open call of `calls`. Of a parameter that comes twice, only the first value counts."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls = calls
        self._parameters = calls.parameters(name)
        self._seen: set[str] = set()
        calls.start(name)
        calls.arguments("{")
        calls.closing = "}"

    def key(self, name: str) -> Sink | None:
        """Begin a value. Returns where its JSON goes, None for nowhere."""
        if name in self._seen:
            return None
        separator = ", " if self._seen else ""
        self._seen.add(name)
        self._calls.arguments(f'{separator}"{escaped(name)}": ')
        self._calls.closing = "null}"
        return self._calls.arguments

    def done(self) -> None:
        """The value is complete."""
        self._calls.closing = "}"

    def text_value(self, name: str, ends: tuple[str, ...], at: str) -> Reader[tuple[str, str]]:
        """Reads a value as bare text before one of `ends`. Returns that, too; a string is passed on as it comes."""
        sink = self.key(name)
        types = self._parameters.types(name)
        if sink is None:
            return (yield from until(ends, at, nowhere))
        if types == _STRING:
            sink('"')
            self._calls.closing = '"}'
            end, at = yield from until(ends, at, lambda text: sink(escaped(text)))
            if end is not END:
                sink('"')
        else:
            parts: list[str] = []
            end, at = yield from until(ends, at, parts.append)
            if parts or end is not END:
                sink(as_json("".join(parts), types))
        self.done()
        return end, at

    def close(self) -> None:
        """The call ends."""
        self._calls.arguments("}")
        self._calls.end()
