r"""JSON Schemas of message types, with the structs among them as components.

msgspec writes the schemas from the types that decode requests, so bounds cannot differ. Added here:

- names of components that depend on the classes alone, see `component_names`;
- descriptions of fields, from the docstrings in the source, or else by their names (`openapi.meanings`);
- fields that are always present in an answer, which msgspec counts as optional because they have a default;
- `$` for the `\Z` at the end of a pattern. In Python, `$` also matches before a last line break; in JSON Schema only
  at the end, where `\Z` has no meaning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from octavo_inference.server.openapi.docstrings import class_description, field_descriptions
from octavo_inference.server.openapi.meanings import MEANINGS

Schema = dict[str, Any]

REF = "#/components/schemas/{name}"
_REF_PREFIX = REF.format(name="")
ONLY_NULL = "Not supported; only null is accepted."
ALWAYS_NULL = "Always null."
# Of tokens: no vocabulary has a billion.
NUMBER_KEY = "^(0|[1-9][0-9]{0,8})$"


def schemas(read: Sequence[object], written: Sequence[object]) -> tuple[list[Schema], list[Schema], dict[str, Schema]]:
    """Schemas of the types that requests have, of those that responses have, and the components of both.

    A type may be in both. Raises `ValueError` if two classes need the same component name.
    """
    inputs, outputs = _structs(read), _structs(written)
    tagged = _in_unions(inputs)
    structs = inputs | outputs
    roots = [*read, *written, *structs]
    found, components = msgspec.json.schema_components(roots, ref_template=REF)
    # The schema of a struct is a reference, which has the name of its component.
    given = {
        schema["$ref"].removeprefix(_REF_PREFIX): kind
        for kind, schema in zip(structs, found[len(read) + len(written) :], strict=True)
    }
    names = component_names(structs)
    renamed = {old: names[kind] for old, kind in given.items()}
    finished = {
        renamed[old]: _with_names(
            _finished(components[old], kind, structs[kind], kind in inputs, kind in tagged), renamed
        )
        for old, kind in given.items()
    }
    # Enums are components, too.
    finished |= {name: schema for name, schema in components.items() if name not in given}
    mapped = [_with_names(schema, renamed) for schema in found]
    return mapped[: len(read)], mapped[len(read) : len(read) + len(written)], dict(sorted(finished.items()))


def inline_schema(kind: type[msgspec.Struct]) -> Schema:
    """The schema of one struct, without other structs in it."""
    _, _, components = schemas([kind], [])
    (schema,) = components.values()
    return schema


def component_names(kinds: Iterable[Any]) -> dict[Any, str]:
    """Names of the components of classes, independent of their order.

    A class keeps its name; `Page[Item]` becomes `PageItem`. Classes of one name get the name of their folder as prefix,
    all of them: `OpenaiMessage`, `AnthropicMessage`. Raises `ValueError` if that does not distinguish them.
    """
    kinds = list(kinds)
    plain = Counter(map(_plain_name, kinds))
    names = {kind: _plain_name(kind) if plain[_plain_name(kind)] == 1 else _prefixed_name(kind) for kind in kinds}
    for name, count in Counter(names.values()).items():
        if count > 1:
            raise ValueError(f"{count} classes need the component name {name}; rename one of them")
    return names


def _plain_name(kind: Any) -> str:
    arguments = "".join(map(_plain_name, getattr(kind, "__args__", ())))
    name = getattr(getattr(kind, "__origin__", kind), "__name__", repr(kind))
    return re.sub(r"[^A-Za-z0-9]", "", name) + arguments


def _prefixed_name(kind: Any) -> str:
    folder = kind.__module__.split(".")[-2:][0]
    return "".join(part.capitalize() for part in folder.split("_")) + _plain_name(kind)


def _structs(roots: Sequence[object]) -> dict[Any, inspect.StructType]:
    """All structs within types, by class."""
    found: dict[Any, inspect.StructType] = {}

    def visit(node: inspect.Type) -> None:
        if isinstance(node, inspect.StructType):
            if node.cls in found:
                return
            found[node.cls] = node
            for field in node.fields:
                visit(field.type)
        for part in _parts(node):
            visit(part)

    for root in inspect.multi_type_info(roots):
        visit(root)
    return found


def _finished(schema: Schema, kind: Any, info: inspect.StructType, is_input: bool, is_tagged: bool) -> Schema:
    if info.array_like:
        return schema
    origin = getattr(kind, "__origin__", kind)
    descriptions = {**(_meanings(origin, info) if is_input else {}), **field_descriptions(origin)}
    properties = dict(schema["properties"])
    for field in info.fields:
        described = dict(properties[field.encode_name])
        if not is_input:
            described.pop("default", None)
        if described.get("type") == "null":
            described.setdefault("description", ONLY_NULL if is_input else ALWAYS_NULL)
        if field.name in descriptions:
            described["description"] = descriptions[field.name]
        if _has_number_keys(field.type):
            described = _with_number_keys(described)
        properties[field.encode_name] = described
    required = schema["required"] if is_input else _present(schema, origin, info)
    if is_input and not is_tagged:
        # The tag selects one of several structs; where there is only one, it may be missing.
        required = [name for name in required if name != info.tag_field]
    finished = {**schema, "description": class_description(origin), "properties": properties, "required": required}
    return {key: value for key, value in finished.items() if key != "title" and (key != "required" or value)}


def _meanings(kind: Any, info: inspect.StructType) -> dict[str, str]:
    """Descriptions of fields by their names, without those of fields that are not supported."""
    found = {}
    for field in info.fields:
        name = field.encode_name
        meaning = MEANINGS.get(f"{kind.__name__}.{name}", MEANINGS.get(name))
        if meaning is not None and not isinstance(field.type, inspect.NoneType):
            found[field.name] = meaning
    return found


def _in_unions(structs: dict[Any, inspect.StructType]) -> set[Any]:
    """Classes that stand in a union with other structs, so that their tag decides."""
    found: set[Any] = set()

    def visit(node: inspect.Type) -> None:
        if isinstance(node, inspect.UnionType):
            options = [option for option in node.types if isinstance(option, inspect.StructType)]
            if len(options) > 1:
                found.update(option.cls for option in options)
        for part in _parts(node):
            if not isinstance(part, inspect.StructType):
                visit(part)

    for info in structs.values():
        for field in info.fields:
            visit(field.type)
    return found


def _parts(node: inspect.Type) -> Iterator[inspect.Type]:
    for name in node.__struct_fields__:
        value = getattr(node, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, inspect.Type):
                yield part


def _has_number_keys(node: inspect.Type) -> bool:
    if isinstance(node, inspect.DictType):
        key = node.key_type
        while isinstance(key, inspect.Metadata):
            key = key.type
        return isinstance(key, inspect.IntType)
    return any(_has_number_keys(part) for part in _parts(node) if not isinstance(part, inspect.StructType))


def _with_number_keys(schema: Schema) -> Schema:
    """The keys of JSON objects are texts; msgspec leaves out that these are whole numbers."""
    if schema.get("type") == "object":
        return {**schema, "propertyNames": {"pattern": NUMBER_KEY}}
    if "anyOf" in schema:
        return {**schema, "anyOf": [_with_number_keys(option) for option in schema["anyOf"]]}
    return schema


def _present(schema: Schema, kind: type[msgspec.Struct], info: inspect.StructType) -> list[str]:
    """Fields that encoded structs always have: none with the default UNSET, and none that `omit_defaults` drops."""
    if kind.__struct_config__.omit_defaults:
        return list(schema["required"])
    tag = [info.tag_field] if info.tag_field else []
    nothing = msgspec.NODEFAULT
    fields = [
        field.encode_name
        for field in info.fields
        if field.required or field.default is not nothing or field.default_factory is not nothing
    ]
    return tag + fields


def _with_names(schema: Any, names: dict[str, str]) -> Any:
    """A schema whose references use other names."""
    return _mapped(schema, lambda reference: REF.format(name=names.get(reference, reference)))


def _mapped(node: Any, rename: Callable[[str], str]) -> Any:
    if isinstance(node, dict):
        mapped = {key: _mapped(value, rename) for key, value in node.items()}
        if isinstance(pattern := mapped.get("pattern"), str):
            mapped["pattern"] = re.sub(r"\\Z$", "$", pattern)
        return mapped
    if isinstance(node, list | tuple):
        return [_mapped(value, rename) for value in node]
    if isinstance(node, str) and node.startswith(_REF_PREFIX):
        return rename(node.removeprefix(_REF_PREFIX))
    return node
