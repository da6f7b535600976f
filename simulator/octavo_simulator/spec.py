"""Loads an LLMDeployment from a YAML file with the operator's own types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from octavo_operator.api.resource import InvalidSpecError, parse
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.autoscaler.observation import policy_settings
from octavo_protocol.names import KIND
from octavo_simulator.controllers.octavo import octavo, static
from octavo_simulator.scenario import Controller


class SpecError(ValueError):
    """A file has no LLMDeployment that can be simulated; the message names file, field, value and fix."""


def load(path: Path) -> Spec:
    """The spec of the single LLMDeployment in a file. Raises `SpecError` with a one-line message."""
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror or error}; give the path of a YAML file") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    found = [document for document in documents if isinstance(document, dict) and document.get("kind") == KIND]
    if len(found) != 1:
        raise SpecError(f"{path}: found {len(found)} documents of kind {KIND}, expected one")
    [document] = found
    given = document.get("metadata")
    metadata = {"name": "model", "namespace": "default", "uid": "simulated"}
    metadata |= given if isinstance(given, dict) else {}
    try:
        return parse(document | {"metadata": metadata}).spec
    except InvalidSpecError as error:
        raise SpecError(f"{path}: {error}") from error


def controller(spec: Spec, start: float | None, record: Callable[[bytes], object] | None = None) -> Controller:
    """The controller for a spec: the policy in mode Builtin, a fixed number in Manual. `start`: the trace's Unix time.

    `record` gets each decision of the policy, in the format of the operator's log. Raises `SpecError` for mode
    External.
    """
    scaling = spec.autoscaling
    if scaling.mode == "External":
        raise SpecError(
            "spec.autoscaling.mode: found External, which another controller decides; set it to Builtin to simulate"
        )
    if scaling.mode == "Manual":
        return static(spec.replicas)
    if scaling.schedules and start is None:
        raise SpecError("spec.autoscaling.schedules: need a trace with dates as arrival times, found plain seconds")
    return octavo(lambda now: policy_settings(spec, now + (start or 0.0)), record)
