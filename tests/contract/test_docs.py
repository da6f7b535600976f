"""Commands, fields and metrics in documents are those of the programs."""

import contextlib
import io
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.support.documents import PAGES, ROOT, SITE, blocks, commands, name, spans

from octavo_gateway.__main__ import _parser as gateway_parser
from octavo_inference.config.server import build_parser as server_parser
from octavo_inference.tools.bench.command import _parser as bench_parser
from octavo_inference.tools.quantize.command import _parser as quantize_parser
from octavo_inference.tools.tune.command import _parser as tune_parser
from octavo_operator.__main__ import parse as operator_parse
from octavo_operator.api.schema import crd
from octavo_operator.api.v1alpha1 import Spec
from octavo_simulator.__main__ import _parser as simulator_parser

Json = dict[str, Any]
SCHEMA: Json = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
# Programs whose flags stand in documents, beside those with commands of their own.
MODULES = ("inference/octavo_inference/tools/precompile.py", "simulator/octavo_simulator/compare.py")
# Flags of other programs: helm, kubectl, pip, docker, pytest, test suites of ours.
FOREIGN = {"--force", "--previous", "--no-deps", "--no-overlap", "--merge", "--dist", "--help", "--server-side"}


def operator_help() -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        operator_parse(["--help"], {})
    return out.getvalue()


def flags_of(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z0-9-]*", text))


@cache
def flags() -> dict[str, set[str]]:
    """Flags by command; longer commands first."""
    helps = {
        "octavo-server tune": tune_parser().format_help(),
        "octavo-server bench": bench_parser().format_help(),
        "octavo-server quantize": quantize_parser().format_help(),
        "octavo-server": server_parser().format_help(),
        "octavo-gateway": gateway_parser().format_help(),
        "octavo-operator": operator_help(),
        "octavo-simulate": simulator_parser().format_help(),
    }
    return {command: flags_of(text) for command, text in helps.items()}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_flags_of_commands_exist(page: Path) -> None:
    for command, known in flags().items():
        for arguments in commands(page, command):
            if command == "octavo-server" and arguments.strip().startswith(("tune", "bench", "quantize")):
                continue
            assert flags_of(arguments) <= known, f"{command}{arguments}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_flags_that_are_named_exist(page: Path) -> None:
    known = set().union(*flags().values(), FOREIGN, *(flags_of((ROOT / module).read_text()) for module in MODULES))
    named = {found[0] for span in spans(page) if (found := re.match(r"(?:octavo-[a-z]+ )?(--[a-z][a-z0-9-]*)", span))}
    unknown = {flag.split()[-1] for flag in named} - known
    assert not unknown


def test_there_are_commands_to_check() -> None:
    found = {command: [call for page in PAGES for call in commands(page, command)] for command in flags()}
    assert all(found[command] for command in ("octavo-server", "octavo-server tune", "octavo-simulate"))


def unknown_fields(schema: Json, value: object, path: str = "") -> list[str]:
    """Fields of a value that its schema does not have, which an API server would drop."""
    if isinstance(value, list):
        return [field for each in value for field in unknown_fields(schema.get("items", {}), each, f"{path}[]")]
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return []
    known, more = schema.get("properties"), schema.get("additionalProperties")
    if known is None:
        return [] if more else [path]
    found = [f"{path}.{key}" for key in value if key not in known]
    return found + [
        field for key in value if key in known for field in unknown_fields(known[key], value[key], f"{path}.{key}")
    ]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_objects_fit_the_crd(page: Path) -> None:
    documents = [each for block in blocks(page, "yaml") for each in yaml.safe_load_all(block)]
    for each in documents:
        if each.get("kind") == "LLMDeployment":
            jsonschema.validate(each, SCHEMA)
            assert not unknown_fields(SCHEMA["properties"]["spec"], each["spec"], "spec")
            Spec.model_validate(each["spec"])
            assert each["metadata"]["name"]


@pytest.mark.parametrize("page", SITE, ids=name)
def test_values_of_the_chart_fit_its_schema(page: Path) -> None:
    values = yaml.safe_load((ROOT / "charts/octavo/values.schema.json").read_text())
    for block in blocks(page, "yaml"):
        document = yaml.safe_load(block)
        if set(document) <= set(values["properties"]):
            part = {"$defs": values.get("$defs", {}), "definitions": values.get("definitions", {})}
            for key, value in document.items():
                partial = {**values["properties"][key], **part, "required": []}
                jsonschema.validate(value, partial)


def has(schema: Json, path: list[str]) -> bool:
    """Whether a field of this path is in a schema; lists are passed through."""
    for step in path:
        while "items" in schema:
            schema = schema["items"]
        if schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema:
            return True
        if step not in schema.get("properties", {}):
            return False
        schema = schema["properties"][step]
    return True


# architecture.md names modules, some like fields.
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "architecture.md"], ids=name)
def test_fields_that_are_named_exist(page: Path) -> None:
    roots = SCHEMA["properties"]
    missing = []
    for span in spans(page):
        path = re.match(r"[A-Za-z]+(?:\.[A-Za-z]+)+", span)
        if not path or span[path.end() : path.end() + 1] not in {"", ":", " ", "=", "["}:
            continue
        steps = path[0].split(".")
        if steps[0] in {"spec", "status"}:
            missing += [] if has(roots[steps[0]], steps[1:]) else [span]
        elif steps[0] in roots["spec"]["properties"] and steps[0] != "resources":
            missing += [] if has(roots["spec"], steps) or has(roots["status"], steps) else [span]
    assert not missing


@cache
def metrics() -> str:
    """Sources that name metrics."""
    folders = ("operator/octavo_operator/metrics", "gateway/octavo_gateway", "inference/octavo_inference/server")
    return "\n".join(path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def is_metric(span: str) -> bool:
    base = re.sub(r"_(?:total|bucket|sum|count)$", "", span)
    names = {span, base} if span.startswith("octavo_") else {span.partition(":")[2], base.partition(":")[2]}
    return any(re.search(rf"[\"}}:]{each}\"", metrics()) for each in names)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_metrics_that_are_named_exist(page: Path) -> None:
    packages = r"octavo_(?:inference|operator|gateway|protocol|common|simulator)\b(?!_)"
    named = {
        found[0]
        for span in spans(page)
        if (found := re.match(r"octavo[_:][a-z0-9_]+", span)) and not re.match(packages, span) and found[0][-1] != "_"
    }
    assert not [metric for metric in sorted(named) if not is_metric(metric)]


def test_the_reference_lists_every_metric() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    in_code = set(re.findall(r"\"((?:octavo_|workqueue_|rest_client_|leader_election_)[a-z_]+)\"", metrics()))
    server = (ROOT / "inference/octavo_inference/server/prometheus.py").read_text()
    in_code |= {f"octavo:{each}" for each in re.findall(r"\(f?\"(?:{prefix})?([a-z_0-9]+)\", \"[A-Z]", server)}
    in_code -= {"octavo_operator", "octavo_gateway", "octavo_inference"}
    documented = {re.sub(r"_total$", "", each) for each in re.findall(r"^\| `([a-z_:0-9]+)`", page, re.MULTILINE)}
    assert in_code
    assert {re.sub(r"_total$", "", each) for each in in_code} <= documented
