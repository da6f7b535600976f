"""Pydantic models to the structural schema that an API server accepts, with CEL rules where the models carry them."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.base import ApiBlock, Json
from octavo_operator.api.v1alpha1 import ROOT_RULES, Spec
from octavo_operator.api.v1alpha1_status import LLMDeploymentStatus
from octavo_protocol import names

_INT32_MAX = 2**31 - 1
_API_VERSION = f"apiVersion is the API group and version of the object: {names.API_GROUP}/{names.API_VERSION}."
_KIND = f"kind is the type of the object: {names.KIND}."
_CONVERTED = ("title", "properties", "items", "default", "additionalProperties")


def structural(model: type[ApiBlock]) -> Json:
    """Structural schema of a model: references inlined, nulls gone, nested defaults that satisfy their own rules."""
    schema = model.model_json_schema(by_alias=True, mode="serialization")
    definitions: dict[str, Json] = schema.pop("$defs", {})
    rules = {cls.__name__: [rule.schema_entry() for rule in cls.RULES] for cls in _blocks(ApiBlock)}
    return _convert(schema, definitions, rules)


def crd() -> Json:
    """The CustomResourceDefinition."""
    spec, status = structural(Spec), structural(LLMDeploymentStatus)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.API_GROUP}"},
        "spec": {
            "group": names.API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["llmd"],
                "categories": ["octavo"],
            },
            "versions": [
                {
                    "name": names.API_VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": _COLUMNS,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": "LLMDeployment is a language model that Octavo serves.",
                            "required": ["spec"],
                            "x-kubernetes-validations": [rule.schema_entry() for rule in ROOT_RULES],
                            "properties": {
                                "apiVersion": {"type": "string", "description": _API_VERSION},
                                "kind": {"type": "string", "description": _KIND},
                                # The API server describes it, and refuses a description here.
                                "metadata": {"type": "object"},
                                "spec": spec,
                                "status": status,
                            },
                        }
                    },
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> Json:
    column: Json = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return column | {"priority": 1} if wide else column


_COLUMNS = [
    _column("Model", "string", ".spec.model.uri", "Location of the model's weights."),
    _column("Status", "string", '.status.conditions[?(@.type=="Ready")].reason', "Reason of the condition Ready."),
    _column("Ready", "integer", ".status.readyReplicas", "Number of pods that are ready and serve requests."),
    _column("Desired", "integer", ".status.desiredReplicas", "Number of replicas that the operator maintains."),
    _column("KV", "string", ".status.load.kvOccupancy", "Share of the KV cache pools that live requests hold."),
    _column("Queue", "integer", ".status.load.queuedRequests", "Number of sequences that wait in replicas."),
    _column("Age", "date", ".metadata.creationTimestamp", "Time since the creation of the LLMDeployment."),
    _column(
        "Scaling", "string", ".status.autoscaling.reason", "Reason of the autoscaler's current decision.", wide=True
    ),
    _column(
        "Adapters",
        "string",
        '.status.conditions[?(@.type=="AdaptersReady")].reason',
        "Reason of the condition AdaptersReady, empty without adapters.",
        wide=True,
    ),
    _column("Format", "string", ".status.model.format", "Format of the model's linear layers.", wide=True),
    _column("Revision", "string", ".status.currentRevision", "Latest revision that has served.", wide=True),
    _column("URL", "string", ".status.url", "OpenAI-compatible base URL within the cluster.", wide=True),
    _column(
        "Message",
        "string",
        '.status.conditions[?(@.type=="Ready")].message',
        "Message of the condition Ready.",
        wide=True,
    ),
]


def _blocks(cls: type[ApiBlock]) -> list[type[ApiBlock]]:
    found = [cls]
    for sub in cls.__subclasses__():
        found += _blocks(sub)
    return found


def _convert(node: Json, definitions: dict[str, Json], rules: dict[str, list[Json]]) -> Json:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        # What stands beside the reference describes the field; the definition describes the type.
        return _convert({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions, rules)
    if "anyOf" in node and not node.get("x-kubernetes-int-or-string"):
        (option,) = [o for o in node["anyOf"] if o.get("type") != "null"]
        return _convert({**option, **{k: v for k, v in node.items() if k != "anyOf"}}, definitions, rules)
    out = {k: v for k, v in node.items() if k not in _CONVERTED}
    if "properties" in node:
        out["properties"] = {k: _convert(v, definitions, rules) for k, v in node["properties"].items()}
        if own := rules.get(node.get("title", "")):
            out["x-kubernetes-validations"] = own
    if "items" in node:
        out["items"] = _convert(node["items"], definitions, rules)
    if isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _convert(node["additionalProperties"], definitions, rules)
    if out.get("type") == "integer":
        out["format"] = "int32" if out.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
    default = _default(node.get("default"), out)
    return out if default is None else {**out, "default": default}


def _default(value: Any, schema: Json) -> Any:
    """A default without nulls and empty collections.

    A block's default is checked by its rules before the defaults of its fields are filled in, so a block with rules
    gets its scalars spelt out; others get an empty object.
    """
    if value is None or value in ([], {}):
        return None
    if not isinstance(value, dict):
        return value
    if "x-kubernetes-validations" not in schema:
        return {}
    return {k: v for k, v in value.items() if isinstance(v, (str, int, bool))}
