"""What `kubectl explain` shows: each field's description has the form of core/v1 and apps/v1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from octavo_operator.api.schema import crd

Json = dict[str, Any]

# Pronouns without a noun, and verbs of speech and sight: fields do neither.
FORBIDDEN = re.compile(
    r"\b(nobody|whoever|whatever|that which|anew|for ever|(is|are|was) (told|had)|the books|beside|when not given|"
    r"says?|said|tells?|told|lies?|lied|hears?|heard|wants?|wanted|looks?|looked|thinks?|asks?|asked)\b"
    r"|(^|[.;:] )What "
)
UNITS = {
    "Milliseconds": ("milliseconds",),
    "Seconds": ("seconds",),
    "Minutes": ("minutes",),
    "Bytes": ("bytes",),
    "Percent": ("percent", "percentage points"),
}
# A field that can be left out names what applies then, or why it cannot always be left out.
UNSET = re.compile(r"\b(Defaults to|unset|empty|must be set|requires it)\b")
WORDS_OF_A_SENTENCE = 25


def nodes(path: str, node: Json, *, required: bool = True) -> Iterator[tuple[str, Json, bool]]:
    """Path, schema and whether it is required, of `node` and all below it; the path of items ends with []."""
    yield path, node, required
    for name, field in node.get("properties", {}).items():
        yield from nodes(f"{path}.{name}", field, required=name in node.get("required", ()))
    if "items" in node:
        yield from nodes(f"{path}[]", node["items"])


def rule_texts(node: Json) -> Iterator[str]:
    """The texts of a block's rules; those of a messageExpression are its literals."""
    for rule in node.get("x-kubernetes-validations", ()):
        yield rule["message"]
        yield from re.findall(r"'([^']*)'", rule.get("messageExpression", ""))


VERSION: Json = crd()["spec"]["versions"][0]
# The API server describes `metadata` itself.
NODES = [node for node in nodes("", VERSION["schema"]["openAPIV3Schema"]) if node[0] != ".metadata"]
FIELDS = [(path, node) for path, node, _ in NODES if path and not path.endswith("[]")]
TEXTS = [(path, node["description"]) for path, node, _ in NODES if "description" in node]
TEXTS += [(column["name"], column["description"]) for column in VERSION["additionalPrinterColumns"]]


def name(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def test_every_field_is_described() -> None:
    assert len(FIELDS) > 250
    assert [path for path, field in FIELDS if not field.get("description")] == []


def test_a_description_begins_with_the_name_of_its_field() -> None:
    for path, field in FIELDS:
        text = field["description"]
        # `spec` and `status` are described by their types, whose names have a capital.
        assert re.match(rf"{name(path)}\b", text[0].lower() + text[1:]), f"{path}: {text}"


def test_a_description_is_of_short_sentences() -> None:
    for path, text in TEXTS:
        assert text[0].isalpha(), f"{path}: {text}"
        assert text.endswith("."), f"{path}: {text}"
        for sentence in text.split(". "):
            assert len(sentence.split()) <= WORDS_OF_A_SENTENCE, f"{path}: {sentence}"


def test_descriptions_use_the_words_of_the_style_guide() -> None:
    values = {value for _, field, _ in NODES for value in field.get("enum", ()) if isinstance(value, str)}
    # The formats of thinking have one that is called "think".
    listed = re.compile(rf"Valid values are ({'|'.join(map(re.escape, values))}|, |and )+\.")
    assert [(path, text) for path, text in TEXTS if FORBIDDEN.search(listed.sub("", text))] == []


def test_rules_use_the_words_of_the_style_guide() -> None:
    assert [(path, text) for path, node, _ in NODES for text in rule_texts(node) if FORBIDDEN.search(text)] == []


def test_a_default_is_named() -> None:
    for path, field in FIELDS:
        default = field.get("default")
        if default is not None and not isinstance(default, dict):
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            assert f"Defaults to {shown}." in field["description"].replace("`", ""), path


def test_a_field_without_a_default_names_what_applies_when_it_is_unset() -> None:
    for path, field, required in NODES:
        if not required and "default" not in field and path.startswith((".spec.", ".status.")):
            assert UNSET.search(field["description"]), path


def test_a_number_names_its_bounds() -> None:
    for path, field in FIELDS:
        if {"minimum", "maximum"} <= set(field) and path.startswith(".spec."):
            assert f"Must be between {field['minimum']} and {field['maximum']}" in field["description"], path


def test_every_value_of_an_enum_is_named() -> None:
    for path, field in FIELDS:
        for value in field.get("enum", ()):
            assert re.search(rf"\b{value}\b", field["description"]), f"{path}: {value}"


def test_a_number_names_its_unit() -> None:
    for path, field in FIELDS:
        for part, units in UNITS.items():
            # `percent` and `kvBytesPerToken` as well as `holdSeconds`.
            if re.search(rf"{part}(?![a-z])", name(path)[0].upper() + name(path)[1:]):
                assert re.search(rf"\b({'|'.join(units)})\b", field["description"]), path
