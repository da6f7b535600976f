"""The API's types: what the generated files say, and what a revision depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.api.generate import files, main
from octavo_operator.api.resource import InvalidSpecError, LLMDeployment, parse
from octavo_operator.api.schema import crd
from octavo_operator.api.v1alpha1 import Spec

ROOT = Path(__file__).resolve().parents[3]
Json = dict[str, Any]


def fields(path: str, node: Json) -> Iterator[tuple[str, Json]]:
    for name, field in node.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(f"{path}.{name}", field)
    if "items" in node:
        yield f"{path}[]", node["items"]
        yield from fields(f"{path}[]", node["items"])


def schema() -> Json:
    version: Json = crd()["spec"]["versions"][0]
    return version["schema"]["openAPIV3Schema"]["properties"]


def test_generated_files_are_up_to_date() -> None:
    for name, content in files().items():
        assert (ROOT / name).read_text() == content, f"{name}: run `make generate`"


def test_check_names_stale_files_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(tmp_path)]) == 0
    stale = tmp_path / "docs/reference/api.md"
    stale.write_text("old")
    capsys.readouterr()
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert "docs/reference/api.md is out of date" in capsys.readouterr().out
    assert stale.read_text() == "old"


def test_every_field_is_bounded() -> None:
    for path, field in fields("spec", schema()["spec"]):
        kind = field.get("type")
        if field.get("x-kubernetes-preserve-unknown-fields"):
            continue
        if kind == "string" and "enum" not in field:
            assert "maxLength" in field, path
        if kind == "integer" and "enum" not in field:
            assert {"minimum", "maximum"} <= set(field), path
        if kind == "array":
            assert "maxItems" in field, path
        if "additionalProperties" in field:
            assert "maxProperties" in field, path


def test_blocks_with_rules_have_defaults_that_satisfy_them() -> None:
    autoscaling = schema()["spec"]["properties"]["autoscaling"]
    assert autoscaling["default"] == {"mode": "Manual", "minReplicas": 1, "maxReplicas": 1}


def rules(node: Json) -> Iterator[Json]:
    yield from node.get("x-kubernetes-validations", [])
    for below in (*node.get("properties", {}).values(), node.get("items")):
        if below:
            yield from rules(below)


def test_every_rule_has_a_refusal_that_is_tried_on_an_api_server() -> None:
    refusals = yaml.safe_load((ROOT / "tests/integration/operator/refusals.yaml").read_text())
    whole = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    stated, tried = {rule["message"] for rule in rules(whole)}, {row["rule"] for row in refusals}
    assert stated - tried == set(), "add a row to tests/integration/operator/refusals.yaml"
    assert tried - stated == set(), "there is no such rule any more"


def test_unset_engine_knobs_are_left_to_the_engine() -> None:
    engine = schema()["spec"]["properties"]["engine"]["properties"]
    scheduler = {name: field for name, field in engine["scheduler"]["properties"].items() if name != "chunkedPrefill"}
    left_open = {name: engine[name] for name in ("maxModelLen", "threads", "profile", "cachePolicy")}
    for name, field in {**left_open, **scheduler, **engine["kv"]["properties"]}.items():
        assert "default" not in field, name


def test_revision_changes_with_the_pods_and_with_nothing_else(make_owner: Callable[..., LLMDeployment]) -> None:
    base = make_owner().revision
    for same in (
        {"replicas": 5},
        {"suspend": True},
        {"autoscaling": {"mode": "External"}},
        {"availability": {"networkPolicy": False}},
        {"routing": {"strategy": "Session"}},
        {"engine": {"dtype": "auto"}},
        {"resources": {"cpu": 4}},
        {"resources": {"memory": "16Gi"}},
    ):
        assert make_owner(same).revision == base, same
    for other in (
        {"model": {"uri": "oci://registry.local/models/tiny:2"}},
        {"engine": {"maxModelLen": 4096}},
        {"engine": {"env": [{"name": "A", "value": "1"}]}},
        {"resources": {"memory": "8Gi"}},
        {"drain": {"timeoutSeconds": 30}},
        {"probes": {"livenessStallSeconds": 40}},
        {"scheduling": {"nodeSelector": {"zone": "a"}}},
        {"scheduling": {"queueName": "team-a"}},
        {"resources": {"claims": [{"name": "nic", "resourceClaimName": "nic-1"}]}},
        {"engine": {"profile": "balanced"}},
    ):
        assert make_owner(other).revision != base, other


@pytest.mark.parametrize(
    ("spec", "revision"),
    [
        ({"model": {"uri": "oci://r/m:1"}}, "024696e1fd"),
        (
            {
                "model": {"uri": "hf://org/m", "revision": "main"},
                "resources": {"gpu": {"count": 0}, "cpu": "4", "memory": "16Gi"},
                "engine": {"dtype": "auto", "kv": {"memory": "1Gi"}, "scheduler": {"chunkedPrefill": True}},
                "drain": {"timeoutSeconds": 120, "propagationSeconds": 5},
            },
            "db1feeb51c",
        ),
        (
            {
                "model": {"uri": "pvc://c/x"},
                "resources": {"memory": "2Gi"},
                "scheduling": {
                    "tolerations": [{"operator": "Exists"}],
                    "topologySpreadConstraints": [
                        {
                            "maxSkew": 1,
                            "topologyKey": "zone",
                            "whenUnsatisfiable": "ScheduleAnyway",
                            "labelSelector": {"matchLabels": {"a": "b"}},
                        }
                    ],
                },
            },
            "862bd70433",
        ),
    ],
)
def test_revisions_stay_what_they_were_in_version_0_1(spec: Json, revision: str) -> None:
    """An operator that computes another one would restart the pods of every resource as soon as it starts."""
    assert parse({"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": spec}).revision == revision


def test_model_names_are_the_served_name_then_the_aliases(make_owner: Callable[..., LLMDeployment]) -> None:
    assert make_owner().model_names == ("tiny",)
    named = make_owner({"model": {"servedName": "big", "aliases": ["gpt", "big"]}})
    assert named.model_names == ("big", "gpt")


def test_a_spec_of_another_time_is_refused_by_field() -> None:
    body = {"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": {"model": {"uri": "ftp://x"}}}
    with pytest.raises(InvalidSpecError, match=r"spec\.model\.uri.*ftp://x"):
        parse(body)


def test_unknown_fields_of_a_newer_api_are_ignored() -> None:
    assert Spec.model_validate({"model": {"uri": "hf://a/b"}, "new": 1}).replicas == 1
