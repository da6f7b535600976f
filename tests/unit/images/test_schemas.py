"""Schemas for kubeconform: closed, and no stricter than the API server."""

from typing import Any

from jsonschema import Draft202012Validator

from kubeschemas.convert import custom_resource, file_name, kinds

GVK = {"group": "apps", "version": "v1", "kind": "Box"}
META = {"type": "object", "properties": {"name": {"type": "string"}}}
SWAGGER: dict[str, Any] = {
    "definitions": {
        "Box": {
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"$ref": "#/definitions/Meta"},
                "port": {"$ref": "#/definitions/io.k8s.apimachinery.pkg.util.intstr.IntOrString"},
                "inner": {"$ref": "#/definitions/Box"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "x-kubernetes-group-version-kind": [GVK],
        },
        "Meta": META,
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": "string", "format": "int-or-string"},
        "Unrelated": {"x-kubernetes-group-version-kind": [GVK], "properties": {}},
    }
}


def problems(schema: dict[str, Any], value: object) -> list[str]:
    return [error.message for error in Draft202012Validator(schema).iter_errors(value)]


def test_kinds_are_closed_and_may_contain_themselves() -> None:
    schemas = dict(kinds(SWAGGER))
    assert list(schemas) == ["box-apps-v1.json"]
    box = {"apiVersion": "apps/v1", "kind": "Box", "metadata": {"name": "a"}, "port": 1, "labels": {"a": "b"}}
    assert not problems(schemas["box-apps-v1.json"], {**box, "port": "http"})
    assert problems(schemas["box-apps-v1.json"], {**box, "prot": 1})
    assert problems(schemas["box-apps-v1.json"], {**box, "metadata": {"nmae": "a"}})
    assert problems(schemas["box-apps-v1.json"], {**box, "apiVersion": "v1"})


def test_custom_resources_keep_what_the_api_server_keeps() -> None:
    spec = {
        "type": "object",
        "properties": {
            "size": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    schema = {"type": "object", "properties": {"metadata": {"type": "object"}, "spec": spec}}
    crd = {
        "spec": {
            "group": "octavo.dev",
            "names": {"kind": "Thing"},
            "versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}],
        }
    }
    thing = dict(custom_resource(crd))["thing-octavo-v1.json"]
    assert not problems(thing, {"metadata": {"name": "x"}, "spec": {"size": "1Gi", "free": {"a": 1}}})
    assert problems(thing, {"spec": {"sise": 1}})


def test_file_names_are_those_kubeconform_looks_for() -> None:
    assert file_name("", "v1", "Pod") == "pod-v1.json"
    assert file_name("networking.k8s.io", "v1", "NetworkPolicy") == "networkpolicy-networking-v1.json"
