"""Random LLMDeployment specs, straight from the schema that the API server gets.

They keep every bound and no more: rules between fields (CEL) are broken at will, so that what is shown for all of them
holds whatever the rules let through.
"""

from __future__ import annotations

import re
import string
from typing import Any

from hypothesis import strategies as st

from octavo_operator.api.schema import crd

Json = dict[str, Any]
# Sizes a person might write; the whole of what the pattern admits is mostly not that.
_QUANTITIES = st.sampled_from(["250m", "1", "2.5", "512Mi", "1Gi", "16Gi", "2G", "100k", 3])
_LIST, _MAP, _TEXT = 3, 3, 64


def specs() -> st.SearchStrategy[Json]:
    """Specs of any resource, optional fields there or not."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return _values(schema["properties"]["spec"])


def _values(node: Json) -> st.SearchStrategy[Any]:
    if "enum" in node:
        return st.sampled_from(node["enum"])
    if node.get("x-kubernetes-int-or-string"):
        return _QUANTITIES.filter(lambda value: re.search(node["pattern"], str(value)) is not None)
    kind = node["type"]
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return st.integers(node["minimum"], node["maximum"])
    if kind == "string":
        return _texts(node)
    if kind == "array":
        return st.lists(_values(node["items"]), min_size=node.get("minItems", 0), max_size=_LIST, **_unique(node))
    if "additionalProperties" in node:
        names = st.text(string.ascii_lowercase, min_size=1, max_size=10)
        return st.dictionaries(names, _values(node["additionalProperties"]), max_size=_MAP)
    fields = {name: _values(field) for name, field in node["properties"].items()}
    needed = {name: fields.pop(name) for name in node.get("required", [])}
    return st.fixed_dictionaries(needed, optional=fields)


def _texts(node: Json) -> st.SearchStrategy[str]:
    most = min(node["maxLength"], _TEXT)
    if "pattern" not in node:
        return st.text(string.printable, min_size=node.get("minLength", 0), max_size=most)
    return st.from_regex(node["pattern"], fullmatch=True, alphabet=string.printable).filter(
        lambda text: node.get("minLength", 0) <= len(text) <= most
    )


def _unique(node: Json) -> Json:
    keys = node.get("x-kubernetes-list-map-keys")
    if keys:
        return {"unique_by": lambda entry: tuple(entry[key] for key in keys)}
    return {"unique_by": repr} if node.get("x-kubernetes-list-type") == "set" else {}
