"""`python -m octavo_inference.server.openapi.reference [--check]`: docs/reference/http.md from the endpoints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from octavo_inference.server.admin import admin_endpoints
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.json_body import BODY_SECONDS, MAX_BODY
from octavo_inference.server.openapi.document import Document
from octavo_inference.server.openapi.operations import ERRORS, PARAMETERS
from octavo_inference.server.openapi.pages import documentation
from octavo_inference.server.openapi.schemas import ONLY_NULL, Schema, component_names, schemas
from octavo_inference.server.public import public_endpoints
from octavo_protocol.names import PORT_ADMIN, PORT_API

PAGE = "docs/reference/http.md"
_INTRODUCTION = f"""\
# HTTP API

Endpoints of [octavo-server](server.md), their keys, bodies and errors.
Generated from the tables of endpoints by `make generate`.

Both ports serve their own description:

| path | content |
|---|---|
| `/openapi.json` | OpenAPI 3.1, generated from the types that decode requests: every bound, every error, every event |
| `/docs` | the same as a page (Swagger UI); it loads nothing from other hosts |

These paths need no API key. A browser sends no key with a page, and they hold only the content of this page and a model
name. With API keys, every other path needs one, except for the probes. A key is sent as `Authorization: Bearer KEY` or
as `x-api-key: KEY`.

A body is JSON with `Content-Type: application/json`. It has at most {MAX_BODY // 2**20} MiB and arrives within
{BODY_SECONDS:g} s. A whole number has no fraction: `5`, not `5.0`.
"""


def page() -> str:
    """The reference page."""
    public, admin = public_endpoints(""), admin_endpoints(lambda: None)
    shown = documentation(Document("", "", (), "", keyed=False))[:2]
    sections = [
        _INTRODUCTION,
        f"## Port {PORT_API}\n\n" + _table(_endpoint_rows((*public, *shown)), _ENDPOINT_COLUMNS),
        f"## Port {PORT_ADMIN}\n\nFor the cluster only, with keys of its own.\n\n"
        + _table(_endpoint_rows((*admin, *shown)), _ENDPOINT_COLUMNS),
        "## Headers of requests\n\n" + _table(_header_rows(), ("header", "meaning")),
        "## Errors\n\n" + _table(((str(status), text) for status, text in ERRORS.items()), ("status", "meaning")),
        "## Bodies\n\nA field that is not required may also be null.\n\n"
        + "\n".join(_body_sections((*public, *admin))),
    ]
    return "\n".join(sections)


_ENDPOINT_COLUMNS = ("method", "path", "surface", "key", "body", "answer", "meaning")


def _endpoint_rows(endpoints: Iterable[HttpEndpoint]) -> Iterator[tuple[str, ...]]:
    for endpoint in endpoints:
        summary = (endpoint.respond.__doc__ or "").partition("\n")[0].rstrip(".")
        yield (
            endpoint.method,
            f"`{endpoint.url}`",
            endpoint.surface,
            "no" if endpoint.is_open else "yes",
            _name(endpoint.body),
            _name(endpoint.answer) + (" or a stream" if endpoint.event is not None else ""),
            summary,
        )


def _name(kind: Any) -> str:
    if kind is None:
        return ""
    return "text" if kind is str else f"`{component_names([kind])[kind]}`"


def _header_rows() -> Iterator[tuple[str, str]]:
    for parameter in PARAMETERS.values():
        yield f"`{parameter['name']}`", str(parameter["description"])


def _body_sections(endpoints: Iterable[HttpEndpoint]) -> Iterator[str]:
    kinds = list(dict.fromkeys(endpoint.body for endpoint in endpoints if endpoint.body is not None))
    _, _, components = schemas(kinds, [])
    for name, schema in components.items():
        yield f"### {name}\n\n{schema['description']}\n\n{_fields(schema)}"


def _fields(schema: Schema) -> str:
    required = schema.get("required", ())
    properties: dict[str, Schema] = schema["properties"]
    unsupported = [f"`{name}`" for name, field in properties.items() if field.get("description") == ONLY_NULL]
    supported = {name: field for name, field in properties.items() if field.get("description") != ONLY_NULL}
    described = any("description" in field for field in supported.values())
    rows = (
        (f"`{name}`", "yes" if name in required else "", _values(field), field.get("description", ""))[: 3 + described]
        for name, field in supported.items()
    )
    table = _table(rows, ("field", "required", "values", "meaning")[: 3 + described])
    return table + (f"\nOnly null is accepted for {', '.join(sorted(unsupported))}.\n" if unsupported else "")


_KINDS = {"integer": "whole number", "string": "text", "boolean": "`true`, `false`"}


def _values(field: Schema) -> str:
    """The values of a field, without null."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_values(option) for option in field["anyOf"] if option.get("type") != "null")
    if "enum" in field:
        return ", ".join(f"`{str(value).lower() if isinstance(value, bool) else value}`" for value in field["enum"])
    kind: str = field.get("type", "any value")
    if kind == "array":
        items = _values(field.get("items", {}))
        kind = f"list of ({items})" if " or " in items or ", " in items else f"list of {items}"
    bounds = _bounds(field)
    separator = ", " if kind.startswith("list") else " "
    return _KINDS.get(kind, kind) + (separator + bounds if bounds else "")


def _bounds(field: Schema) -> str:
    if "pattern" in field:
        return f"`{field['pattern']}`"
    low = field.get("minimum", field.get("minLength", field.get("minItems", field.get("minProperties"))))
    high = field.get("maximum", field.get("maxLength", field.get("maxItems", field.get("maxProperties"))))
    unit = {"string": " characters", "array": " items", "object": " entries"}.get(field.get("type", ""), "")
    if "exclusiveMinimum" in field:
        return f"above {field['exclusiveMinimum']:,}" + ("" if high is None else f", at most {high:,}")
    if low is not None and high is not None:
        return f"{low:,} to {high:,}{unit}"
    if high is not None:
        return f"at most {high:,}{unit}"
    return "" if low is None else f"at least {low:,}{unit}"


def _table(rows: Iterable[tuple[str, ...]], columns: tuple[str, ...]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |\n" for line in lines
    )


def main(argv: list[str] | None = None) -> int:
    """Write the page, or with --check only compare; 1 if it differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository's root")
    arguments = parser.parse_args(argv)
    path: Path = arguments.root / PAGE
    content = page()
    if path.exists() and path.read_text() == content:
        return 0
    if arguments.check:
        sys.stdout.write(f"{PAGE} is out of date: run `make generate`\n")
        return 1
    path.write_text(content)
    sys.stdout.write(f"{PAGE} written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
