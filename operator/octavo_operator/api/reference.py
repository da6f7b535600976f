"""The reference page of the API, from the same schema the API server gets."""

from __future__ import annotations

from collections.abc import Iterator

from octavo_operator.api.base import Json


def page(crd: Json) -> str:
    """Markdown of all fields, their types, bounds, defaults, rules and meanings."""
    version = crd["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]
    short_name = crd["spec"]["names"]["shortNames"][0]
    lines = [
        "# LLMDeployment",
        "",
        f"`apiVersion: {crd['spec']['group']}/{version['name']}`, short name `{short_name}`.",
        "Generated from `operator/octavo_operator/api/v1alpha1.py` by `make generate`.",
        "",
        "Rules of the whole resource:",
        "",
        *(f"- {rule['message']}" for rule in root["x-kubernetes-validations"]),
    ]
    for part in ("spec", "status"):
        for path, block in _blocks(part, root["properties"][part]):
            lines += ["", f"## {path}", "", block["description"], ""]
            lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
            required = block.get("required", [])
            lines += [_row(name, field, name in required) for name, field in block["properties"].items()]
            if rules := block.get("x-kubernetes-validations"):
                lines += ["", "Rules:", "", *(f"- {rule['message']}" for rule in rules)]
    return "\n".join(lines) + "\n"


def _blocks(path: str, node: Json) -> Iterator[tuple[str, Json]]:
    if node.get("type") == "array":
        yield from _blocks(path + "[]", node["items"])
    elif "properties" in node:
        yield path, node
        for name, field in node["properties"].items():
            yield from _blocks(f"{path}.{name}", field)


def _row(name: str, field: Json, required: bool) -> str:
    default = field.get("default", "")
    shown = f"`{str(default).lower() if isinstance(default, bool) else default}`" if default not in ("", {}) else ""
    if isinstance(default, dict):
        shown = ""
    return f"| `{name}`{' (required)' if required else ''} | {_type(field)} | {shown} | {field['description']} |"


def _type(field: Json) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}, at most {field['maxItems']}"
    if "additionalProperties" in field:
        return f"map, at most {field['maxProperties']}"
    if field.get("type") == "integer":
        low, high = field.get("minimum"), field.get("maximum")
        return f"integer {low}…{high}" if high is not None else "integer"
    if field.get("format") == "date-time":
        return "time"
    if field.get("type") == "string" and "maxLength" in field:
        return f"string, at most {field['maxLength']}"
    return str(field.get("type"))
