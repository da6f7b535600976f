"""The examples are valid LLMDeployments, and name the model image that `make images` builds."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from images import model
from kubeschemas.convert import custom_resource

ROOT = Path(__file__).resolve().parents[3]
CRD: dict[str, Any] = yaml.safe_load((ROOT / "crds" / "llmdeployments.octavo.dev.yaml").read_text())
SCHEMAS = dict(custom_resource(CRD))
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_is_valid(path: Path) -> None:
    example = yaml.safe_load(path.read_text())
    Draft202012Validator(SCHEMAS["llmdeployment-octavo-v1alpha1.json"]).validate(example)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_misspelt_field_of_an_example_is_found(path: Path) -> None:
    example = yaml.safe_load(path.read_text())
    example["spec"]["modell"] = {}
    assert list(Draft202012Validator(SCHEMAS["llmdeployment-octavo-v1alpha1.json"]).iter_errors(example))


def test_examples_with_our_model_image_name_its_tag() -> None:
    references = [yaml.safe_load(path.read_text())["spec"]["model"]["uri"] for path in EXAMPLES]
    ours = [uri for uri in references if "models/smollm2" in uri]
    assert ours
    assert set(ours) == {f"oci://localhost:5000/models/smollm2:{model.tag()}"}
