"""Parses the key file with limits, YAML or JSON, into entries; errors name the line and the field. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from difflib import get_close_matches

import yaml

from octavo_gateway.access.api_keys import MAX_PRIORITY, ApiKey, KeyFileError, hashed, opaque
from octavo_gateway.access.rate_limits import RateLimits

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?\Z")
_KEY = re.compile(r"[\x21-\x7e]{1,512}\Z")
_PATTERN = re.compile(r"[\x21-\x7e]{1,253}\Z")
_MOST = 10**9
_MOST_KEYS = 8
_MOST_MODELS = 64
_DEEPEST = 8
_FIELDS = (
    "name", "key", "tenant", "models", "requestsPerMinute", "tokensPerMinute", "maxConcurrent", "priority", "expires"
)  # fmt: skip


def read(text: str) -> dict[bytes, ApiKey]:
    """Entries by the digest of their key. Raises `KeyFileError`."""
    try:
        _bounded(text)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        # The library's own message quotes the line, which may contain a key.
        raise KeyFileError(f"{where}not valid YAML ({getattr(error, 'problem', None) or 'unreadable'})") from None
    found: dict[bytes, ApiKey] = {}
    names: set[str] = set()
    for path, node in _items(_mapping(root, "the document", ("keys",)).get("keys"), "keys"):
        entry, digests = _entry(path, node)
        if entry.name in names:
            raise _wrong(node, f"{path}.name", f"{entry.name!r} is used twice; to rotate a key give `key` a list")
        names.add(entry.name)
        for digest in digests:
            if digest in found:
                raise _wrong(node, f"{path}.key", f"this key is already that of {found[digest].name!r}")
            found[digest] = entry
    return found


def _bounded(text: str) -> None:
    """Refuse a document that is nested too deeply: it would overflow the library's stack and end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise KeyFileError(f"nested deeper than {_DEEPEST} levels")


def _entry(path: str, node: yaml.Node) -> tuple[ApiKey, list[bytes]]:
    fields = _mapping(node, path, _FIELDS)
    for required in ("name", "key"):
        if required not in fields:
            raise _wrong(node, f"{path}.{required}", "is missing")
    name = _text(fields["name"], f"{path}.name", _NAME, "a name of a-z, 0-9, '-', '_' and '.', at most 63 characters")
    key = fields["key"]
    several = _items(key, f"{path}.key") if isinstance(key, yaml.SequenceNode) else [(f"{path}.key", key)]
    digests = [hashed(_text(one, at, _KEY, "a key without spaces, in quotes", secret=True)) for at, one in several]
    if not 1 <= len(digests) <= _MOST_KEYS:
        raise _wrong(key, f"{path}.key", f"expected 1 to {_MOST_KEYS} keys, found {len(digests)}")
    tenant = name
    if "tenant" in fields:
        tenant = _text(fields["tenant"], f"{path}.tenant", _NAME, "a name as `name` is")
    default, most = _priority(fields.get("priority"), f"{path}.priority")
    entry = ApiKey(
        name=name,
        account=name,
        tenant=opaque("tenant", tenant),
        models=_models(fields.get("models"), f"{path}.models"),
        limits=RateLimits(
            requests=_whole(fields.get("requestsPerMinute"), f"{path}.requestsPerMinute", 1, _MOST),
            tokens=_whole(fields.get("tokensPerMinute"), f"{path}.tokensPerMinute", 1, _MOST),
            concurrent=_whole(fields.get("maxConcurrent"), f"{path}.maxConcurrent", 1, _MOST),
        ),
        priority=default,
        max_priority=most,
        expires=_expires(fields.get("expires"), f"{path}.expires"),
    )
    return entry, digests


def _models(node: yaml.Node | None, path: str) -> tuple[str, ...] | None:
    if node is None:
        return None
    wanted = "a model's name, alias or NAMESPACE/NAME, with * for any text"
    patterns = tuple(_text(item, at, _PATTERN, wanted) for at, item in _items(node, path))
    if not 1 <= len(patterns) <= _MOST_MODELS:
        raise _wrong(node, path, f"expected 1 to {_MOST_MODELS} patterns, found {len(patterns)}; leave it out for all")
    return patterns


def _priority(node: yaml.Node | None, path: str) -> tuple[int, int]:
    """Default and maximum priority."""
    if node is None:
        return 0, MAX_PRIORITY
    fields = _mapping(node, path, ("default", "max"))
    most = _whole(fields.get("max"), f"{path}.max", -MAX_PRIORITY, MAX_PRIORITY)
    most = MAX_PRIORITY if most is None else most
    default = _whole(fields.get("default"), f"{path}.default", -MAX_PRIORITY, MAX_PRIORITY)
    default = min(0, most) if default is None else default
    if default > most:
        raise _wrong(node, f"{path}.default", f"{default} is above `max`, {most}")
    return default, most


def _expires(node: yaml.Node | None, path: str) -> float:
    if node is None:
        return float("inf")
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    try:
        if len(text) == len("2027-01-31"):
            moment = datetime.combine(date.fromisoformat(text), time(tzinfo=UTC))
        else:
            moment = datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(node, path, f"expected a time such as 2027-01-31T00:00:00Z, found {_shown(node)}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _mapping(node: yaml.Node | None, path: str, known: tuple[str, ...]) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(node, path, f"expected a map with {', '.join(known)}, found {_kind(node)}")
    fields: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name not in known:
            # The message omits the name: it may be a key in the wrong place.
            meant = get_close_matches(name, known, 1)
            raise _wrong(
                key, path, "unknown field; " + (f"is it {meant[0]!r}?" if meant else "known: " + ", ".join(known))
            )
        if name in fields:
            raise _wrong(key, f"{path}.{name}", "is given twice")
        fields[name] = value
    return fields


def _items(node: yaml.Node | None, path: str) -> Iterator[tuple[str, yaml.Node]]:
    if not isinstance(node, yaml.SequenceNode):
        raise _wrong(node, path, f"expected a list, found {_kind(node)}")
    return ((f"{path}[{index}]", item) for index, item in enumerate(node.value))


def _text(node: yaml.Node, path: str, pattern: re.Pattern[str], wanted: str, *, secret: bool = False) -> str:
    if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":str") and pattern.match(node.value):
        return str(node.value)
    raise _wrong(node, path, f"expected {wanted}" + ("" if secret else f"; found {_shown(node)}"))


def _whole(node: yaml.Node | None, path: str, low: int, high: int) -> int | None:
    if node is None:
        return None
    value = None
    if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":int"):
        try:
            value = int(node.value)
        except ValueError:
            value = None
    if value is None or not low <= value <= high:
        raise _wrong(node, path, f"expected a whole number from {low} to {high}, found {_shown(node)}")
    return value


def _shown(node: yaml.Node | None) -> str:
    return repr(node.value[:64]) if isinstance(node, yaml.ScalarNode) and node.value else _kind(node)


def _kind(node: yaml.Node | None) -> str:
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
        return "nothing"
    if isinstance(node, yaml.ScalarNode):
        return "a single value"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a map"


def _wrong(node: yaml.Node | None, path: str, why: str) -> KeyFileError:
    where = f"line {node.start_mark.line + 1}, " if node is not None else ""
    return KeyFileError(f"{where}{path}: {why}")
