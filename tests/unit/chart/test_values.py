"""The chart's values: what is accepted, what is refused, and that each is explained."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

CHART = Path(__file__).resolve().parents[3] / "charts" / "octavo"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)
# Objects of Kubernetes that its API server checks, and Helm's own.
OPEN = {"nodeAffinity", "podAffinity", "podAntiAffinity", "global"}


def objects(node: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if node.get("type") == "object":
            yield name, node
        for key, value in node.items():
            yield from objects(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from objects(value, name)


def leaves(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value and name != "resources":
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def changed(path: str, value: object) -> dict[str, Any]:
    values = copy.deepcopy(VALUES)
    *parents, last = path.split(".")
    inner = values
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return values


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_the_defaults_are_accepted() -> None:
    VALIDATOR.validate(VALUES)


@pytest.mark.parametrize(("name", "schema"), list(objects(SCHEMA)))
def test_no_object_takes_unknown_names(name: str, schema: dict[str, Any]) -> None:
    others = schema.get("additionalProperties")
    # A map of objects is closed when they are, and they come here too.
    closed = others in (False, {"type": "string"}) or (isinstance(others, dict) and others.get("type") == "object")
    assert name in OPEN or closed or name == "quantities"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("gatway", {}),
        ("gateway.replica", 2),
        ("gateway.replicas", -1),
        ("gateway.workers", 0),
        ("gateway.workers", 17),
        ("gateway.image.tag", "a b"),
        ("operator.image.digest", "sha256:abc"),
        ("operator.logLevel", "loud"),
        ("rbac.scope", "galaxy"),
        ("rbac.namespaces", ["Upper"]),
        ("gateway.hold.maxBytes", "lots"),
        ("gateway.tolerations", [{"keys": "a"}]),
        ("networkPolicy.clients", [{}]),
        ("gateway.service.type", "Ingress"),
        ("resourceProfiles", {"large": {"gpus": 1}}),
        ("resourceProfiles", {"Large": {"cpu": 1}}),
        ("resourceProfiles", {"large": {"cpu": "four"}}),
    ],
)
def test_nonsense_is_refused(path: str, value: object) -> None:
    assert list(VALIDATOR.iter_errors(changed(path, value)))


def test_every_value_is_in_the_schema_and_every_property_has_a_default() -> None:
    def names(schema: dict[str, Any], path: str = "") -> Iterator[str]:
        schema = SCHEMA["$defs"][schema["$ref"].split("/")[-1]] if "$ref" in schema else schema
        for name, inner in schema.get("properties", {}).items():
            yield f"{path}{name}"
            yield from names(inner, f"{path}{name}.")

    known = {name for name in names(SCHEMA) if not set(name.split(".")) & {"global", "affinity", "resources"}}
    given = {path for path, _ in leaves(VALUES)}
    prefixes = {path[:end] for path in given for end in (m.start() for m in re.finditer(r"\.", path))}
    assert known - prefixes == given - {path for path in given if path.endswith((".affinity", ".resources"))}


@pytest.mark.parametrize(("path", "default"), list(leaves(VALUES)))
def test_the_readme_explains_every_value(path: str, default: object) -> None:
    shown = default if isinstance(default, str) else json.dumps(default)
    row = next((line for line in (CHART / "README.md").read_text().splitlines() if f"| `{path}` |" in line), "")
    assert f"| `{shown}` |" in row if shown else "| empty |" in row


def test_the_template_finds_where_the_crd_gets_its_labels() -> None:
    text = (CHART / "files" / "llmdeployments.octavo.dev.yaml").read_text()
    assert text.count("metadata:\n  name: llmdeployments.octavo.dev\n") == 1


def described(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Each property of a schema, and what its description is."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}", inner.get("description", "")
        yield from described(inner, f"{path}{name}.")


def test_every_value_is_described_in_sentences() -> None:
    texts = list(described(SCHEMA))
    assert len(texts) > 70
    assert [path for path, text in texts if not re.fullmatch(r"[A-Z].*\.", text)] == []
