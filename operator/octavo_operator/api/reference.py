"""The reference pages: of the API, from the same schema the API server gets, and of the server's settings."""

from __future__ import annotations

from collections.abc import Iterator

from octavo_operator.api.base import Json
from octavo_protocol.engine_settings import EngineSettings
from octavo_protocol.knobs import BYTES, Setting, settings_of
from octavo_protocol.server_settings import ServerSettings


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


def settings_page() -> str:
    """Markdown of all settings of `octavo-server`."""
    table = (*settings_of(EngineSettings), *settings_of(ServerSettings))
    lines = [
        "# Settings of octavo-server",
        "",
        "Each setting is a flag and, without the dashes, a key of the TOML file of `--config FILE`. A setting with a",
        "field is also one of an `LLMDeployment`, below `spec.engine`. `LLM(...)` takes those of the model and the",
        "engine, with underscores, `--device` as `backend`. How they work together: [octavo-server](server.md).",
        "Generated from `protocol/octavo_protocol/engine_settings.py` and `server_settings.py` by `make generate`.",
    ]
    for group in dict.fromkeys(setting.knob.group for setting in table):
        lines += ["", f"## {group}", "", "| flag | values | default | field | meaning |", "|---|---|---|---|---|"]
        lines += [_setting_row(setting) for setting in table if setting.knob.group == group]
    return "\n".join(lines) + "\n"


def _setting_row(setting: Setting) -> str:
    knob = setting.knob
    flag = f"`--{setting.key}`" + (f", `--no-{setting.key}`" if setting.is_switch else "")
    field = f"`{knob.api.path}`" if knob.api else ""
    default = setting.default_text if knob.unset or setting.is_switch else f"`{setting.default_text}`"
    return f"| {flag} | {_values(setting)} | {default} | {field} | {knob.help} |"


def _values(setting: Setting) -> str:
    knob = setting.knob
    if setting.offered:
        return ", ".join(f"`{choice}`" for choice in setting.offered)
    if setting.is_switch:
        return ""
    if knob.unit == BYTES:
        return "size, as in `512Mi`"
    if knob.low is not None and knob.high is not None:
        return f"{knob.low:,} to {knob.high:,}{f' {knob.unit}' if knob.unit else ''}"
    return "texts" if setting.is_list else "text"


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
