"""Converts OpenAPI to one closed JSON schema per kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = dict[str, Any]

_INT_OR_STRING: Schema = {"type": ["integer", "string"]}
# Types whose OpenAPI differs from the values that the API server accepts.
_SPECIAL: dict[str, Schema] = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _INT_OR_STRING,
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["number", "string"]},
}


def kinds(swagger: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """(file name, schema) of every kind in Kubernetes' swagger.json, as kubeconform looks for them."""
    definitions: Mapping[str, Schema] = swagger["definitions"]
    for name, definition in definitions.items():
        for gvk in definition.get("x-kubernetes-group-version-kind", ()):
            # Kinds such as DeleteOptions exist in every group; only objects of manifests matter here.
            if "metadata" in definition.get("properties", {}):
                yield file_name(gvk["group"], gvk["version"], gvk["kind"]), _self_contained(name, definitions, gvk)


def custom_resource(crd: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """(file name, schema) of every version of a CustomResourceDefinition."""
    group, kind = crd["spec"]["group"], crd["spec"]["names"]["kind"]
    for version in crd["spec"]["versions"]:
        schema = _closed(version["schema"]["openAPIV3Schema"])
        metadata: Schema = {"type": "object"}
        schema["properties"] = {**schema["properties"], "metadata": metadata}
        yield file_name(group, version["name"], kind), schema


def file_name(group: str, version: str, kind: str) -> str:
    """File name for kubeconform, `{{.ResourceKind}}{{.KindSuffix}}.json`: kind, first part of the group, version."""
    first = group.partition(".")[0]
    return "-".join(filter(None, (kind.lower(), first, version))) + ".json"


def _self_contained(name: str, definitions: Mapping[str, Schema], gvk: Mapping[str, str]) -> Schema:
    reached: dict[str, Schema] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached[current] = _SPECIAL.get(current) or _closed(definitions[current])
            waiting += _references(reached[current])
    top = reached[name]
    api_version = f"{gvk['group']}/{gvk['version']}" if gvk["group"] else gvk["version"]
    top["required"] = sorted({*top.get("required", ()), "apiVersion", "kind"})
    top["properties"] = {**top["properties"], "apiVersion": {"const": api_version}, "kind": {"const": gvk["kind"]}}
    return {"$ref": f"#/definitions/{name}", "definitions": reached}


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference.removeprefix("#/definitions/")
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _closed(node: Any) -> Any:
    """The schema without extensions and descriptions, closed so that misspelt fields are errors."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string"):
        return dict(_INT_OR_STRING)
    result = {
        key: {name: _closed(value) for name, value in node[key].items()} if key == "properties" else _closed(node[key])
        for key in node
        if not key.startswith("x-") and key not in {"description", "default", "format"}
    }
    open_ended = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
    if "properties" in node and not open_ended:
        result["additionalProperties"] = False
    return result
