"""The example resource, as the tests vary it."""

from __future__ import annotations

from typing import Any

import yaml


def changed(example: str, name: str, **changes: Any) -> dict[str, Any]:
    """The example under another name, fixed at one replica unless `changes` (merged into spec) say otherwise."""
    resource: dict[str, Any] = yaml.safe_load(example)
    resource["metadata"]["name"] = name
    resource["spec"].pop("autoscaling", None)
    for field, value in changes.items():
        resource["spec"][field] = {**resource["spec"].get(field, {}), **value} if isinstance(value, dict) else value
    return resource
