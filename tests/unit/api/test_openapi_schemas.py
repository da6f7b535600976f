"""Schemas of messages: they say what the server accepts, and what it sends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Generic, Literal, TypeVar

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec import UNSET, Meta, UnsetType, inspect
from tests.support.tiers import scaled
from tests.unit.api.messages import values

from octavo_inference.server import json_body
from octavo_inference.server.admin import admin_endpoints
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.errors import ApiError
from octavo_inference.server.openapi.schemas import component_names, schemas
from octavo_inference.server.public import public_endpoints

ENDPOINTS = [*public_endpoints("1.2.3"), *admin_endpoints(lambda: None)]
BODIES = sorted({endpoint.body for endpoint in ENDPOINTS if endpoint.body}, key=lambda kind: kind.__name__)
Check = Callable[[object], bool]


def pattern(_: object, expression: str, value: object, __: object) -> Iterator[jsonschema.ValidationError]:
    """As JSON Schema defines it: `$` is the end of the text alone."""
    if isinstance(value, str) and re.search(expression.replace("$", r"\Z"), value) is None:
        yield jsonschema.ValidationError(f"{value!r} does not match {expression!r}")


def validator(kind: type) -> jsonschema.Draft202012Validator:
    """Of the schema in the document. A whole number is an integer only without a fraction, as the document says."""
    (schema,), _, components = schemas([kind], [])
    strict = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    checker = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": pattern}, type_checker=strict)
    return checker({**schema, "components": {"schemas": components}})


def accepts(kind: type, value: object) -> bool:
    try:
        json_body.decode(json.dumps(value).encode(), kind)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_what_fits_the_type_fits_the_schema(kind):
    check = validator(kind)

    @settings(max_examples=scaled(60), deadline=None, suppress_health_check=list(HealthCheck))
    @given(values(kind, near=False))
    def run(value):
        check.validate(value)
        assert accepts(kind, value)

    run()


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_the_server_refuses_what_the_schema_refuses_and_nothing_else(kind):
    check = validator(kind)

    @settings(max_examples=scaled(200), deadline=None, suppress_health_check=list(HealthCheck))
    @given(values(kind, near=True))
    def run(value):
        assert check.is_valid(value) == accepts(kind, value), value

    run()


def bounds(info: object) -> Iterator[tuple[str, object]]:
    """Bounds of a type, without those of the structs in it, with the keywords of JSON Schema."""
    keywords = {
        inspect.IntType: {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"},
        inspect.FloatType: {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"},
        inspect.StrType: {"min_length": "minLength", "max_length": "maxLength"},
        inspect.ListType: {"min_length": "minItems", "max_length": "maxItems"},
        inspect.DictType: {"min_length": "minProperties", "max_length": "maxProperties"},
    }
    for name, keyword in keywords.get(type(info), {}).items():
        if (bound := getattr(info, name)) is not None:
            yield keyword, bound
    if isinstance(info, inspect.LiteralType):
        yield "enum", list(info.values)
    # Bounds of whole numbers that are keys have no keyword.
    inner = [info.value_type] if isinstance(info, inspect.DictType) and is_number(info.key_type) else parts(info)
    for part in inner:
        if not isinstance(part, inspect.StructType):
            yield from bounds(part)


def is_number(info: object) -> bool:
    while isinstance(info, inspect.Metadata):
        info = info.type
    return isinstance(info, inspect.IntType)


def parts(info: object) -> Iterator[object]:
    for name in getattr(info, "__struct_fields__", ()):
        value = getattr(info, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, inspect.Type):
                yield part


def found(node: object) -> Iterator[tuple[str, object]]:
    if isinstance(node, dict):
        yield from ((key, value) for key, value in node.items() if not isinstance(value, dict))
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from found(child)


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_every_bound_of_a_field_is_in_its_schema(kind):
    _, _, components = schemas([kind], [])
    info = inspect.type_info(kind)
    for field in info.fields:
        expected = list(bounds(field.type))
        shown = list(found(components[kind.__name__]["properties"][field.encode_name]))
        for bound in expected:
            shown.remove(bound)


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_a_body_takes_no_other_fields(kind):
    _, _, components = schemas([kind], [])
    assert all(component["additionalProperties"] is False for component in components.values())


def test_no_pattern_lets_a_last_line_break_through():
    patterns = [pattern for kind in BODIES for pattern in patterns_of(inspect.type_info(kind))]
    assert patterns
    assert all(pattern.endswith(r"\Z") for pattern in patterns), "in Python $ also matches before a last line break"


def patterns_of(info: object) -> Iterator[str]:
    if isinstance(info, inspect.StrType) and info.pattern is not None:
        yield info.pattern
    for part in parts(info):
        yield from patterns_of(part)
    for field in getattr(info, "fields", ()):
        yield from patterns_of(field.type)


class Small(msgspec.Struct, forbid_unknown_fields=True):
    """A small message."""

    code: Annotated[str, Meta(pattern=r"^[a-z]+\Z")]
    """Letters of
    the code."""
    later: None = None


def test_a_pattern_is_written_for_json_schema():
    _, _, components = schemas([Small], [])
    assert components["Small"]["properties"]["code"]["pattern"] == "^[a-z]+$"


def test_a_field_that_is_not_supported_says_so():
    _, _, components = schemas([Small], [])
    assert components["Small"]["properties"]["later"]["description"] == "Not supported; only null is accepted."


def test_fields_are_described_by_their_docstrings():
    error = next(endpoint.error for endpoint in ENDPOINTS)
    _, _, components = schemas([], [error])
    assert components["ErrorDetail"]["properties"]["type"]["description"] == "Kind of the error."
    assert components["ErrorDetail"]["description"] == "The reason of an error."


class Sent(msgspec.Struct):
    """A message to clients."""

    id: str
    kind: str = "sent"
    extra: int | UnsetType = UNSET


class Sparse(msgspec.Struct, omit_defaults=True):
    """A message without the fields that have their defaults."""

    id: str
    text: str | None = None


def test_an_answer_always_has_the_fields_that_are_not_unset():
    _, _, components = schemas([], [Sent, Sparse])
    assert components["Sent"]["required"] == ["id", "kind"]
    assert components["Sparse"]["required"] == ["id"]


def test_a_type_of_bodies_and_answers_requires_what_bodies_need():
    _, _, components = schemas([Sent], [Sent])
    assert components["Sent"]["required"] == ["id"]


Item = TypeVar("Item")


class Page(msgspec.Struct, Generic[Item]):
    """A page of items."""

    items: list[Item]


def test_a_generic_has_a_component_for_each_argument():
    _, written, components = schemas([], [Page[Sent], Page[Sparse]])
    assert {"PageSent", "PageSparse"} <= components.keys()
    assert written[0] == {"$ref": "#/components/schemas/PageSent"}
    assert components["PageSent"]["properties"]["items"]["items"] == {"$ref": "#/components/schemas/Sent"}


def message(folder: str, field: str) -> type:
    """A struct `Note` as two surfaces could have it."""
    return msgspec.defstruct("Note", [(field, int)], module=f"octavo_inference.server.{folder}.requests")


def test_classes_of_one_name_get_the_names_of_their_folders():
    first, second = message("openai", "a"), message("anthropic", "b")
    _, written, components = schemas([], [list[first], second, Sent])
    assert components.keys() == {"OpenaiNote", "AnthropicNote", "Sent"}
    assert list(components["AnthropicNote"]["properties"]) == ["b"]
    assert written[0]["items"] == {"$ref": "#/components/schemas/OpenaiNote"}


def test_names_do_not_depend_on_the_order():
    kinds = [message("openai", "a"), message("anthropic", "b"), message("tokens", "c"), Sent]
    assert component_names(kinds) == component_names(kinds[::-1])


def test_names_that_stay_equal_are_an_error():
    with pytest.raises(ValueError, match="2 classes need the component name OpenaiNote"):
        component_names([message("openai", "a"), message("openai", "b")])


class Cat(msgspec.Struct, tag="cat", tag_field="type"):
    """A cat."""

    lives: int


class Dog(msgspec.Struct, tag="dog", tag_field="type"):
    """A dog."""

    tricks: int


def test_a_union_names_its_components_by_tag():
    _, written, components = schemas([], [Cat | Dog])
    assert written[0]["discriminator"]["mapping"] == {
        "cat": "#/components/schemas/Cat",
        "dog": "#/components/schemas/Dog",
    }
    assert components["Cat"]["required"] == ["type", "lives"]


def test_a_tag_is_required_where_it_selects():
    alone = msgspec.defstruct("Alone", [("pet", Cat)])
    either = msgspec.defstruct("Either", [("pet", Cat | Dog)])
    _, _, single = schemas([alone], [])
    _, _, both = schemas([either], [])
    assert single["Cat"]["required"] == ["lives"]
    assert both["Cat"]["required"] == ["type", "lives"]


def test_keys_that_are_numbers_have_a_pattern():
    kind = msgspec.defstruct("Bias", [("bias", dict[int, float] | None, None)])
    _, _, components = schemas([kind], [])
    assert components["Bias"]["properties"]["bias"]["anyOf"][0]["propertyNames"] == {"pattern": "^(0|[1-9][0-9]{0,8})$"}


def test_an_endpoint_knows_its_surface_and_its_parameters():
    endpoint: HttpEndpoint = next(endpoint for endpoint in ENDPOINTS if endpoint.body)
    model = next(endpoint for endpoint in ENDPOINTS if endpoint.parameters)
    assert endpoint.surface == "openai"
    assert (model.parameters, model.url) == (("name",), "/v1/models/{name}")


def test_a_literal_keeps_its_values():
    kind: Any = msgspec.defstruct("Choice", [("mode", Literal["a", "b"])])
    _, written, components = schemas([], [kind])
    assert components["Choice"]["properties"]["mode"] == {"enum": ["a", "b"]}
    assert re.fullmatch(r"#/components/schemas/\w+", written[0]["$ref"])
