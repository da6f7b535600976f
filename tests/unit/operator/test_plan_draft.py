"""A draft model is inspected with the model, pinned like it, and counted in its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.operator.world import World, condition

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.observe import fit
from octavo_operator.observe.memory_estimate import Estimate, estimate, refusal
from octavo_operator.resources import model_job, protection
from octavo_operator.resources.common import Installation
from octavo_protocol.kv_tables import KvTables
from octavo_protocol.model import GpuReport, ModelFailure, ModelReport, encode_inspection

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
SMALL = ModelReport(
    revision="5ma11",
    architecture="llama",
    parameters=135_000_000,
    weights={"auto": 270_000_000, "float32": 540_000_000},
    kv_elements_per_token=11_520,
    max_length=8192,
    token_bytes=19_200,
    row_bytes=251_904,
)
LARGE = ModelReport(
    revision="1a46e",
    architecture="llama",
    weights={"auto": 3_400_000_000, "float32": 6_800_000_000, "int8": 1_900_000_000},
    kv_elements_per_token=98_304,
    max_length=8192,
    token_bytes=60_000,
    row_bytes=400_000,
    gpu=GpuReport(head_dim=64, row_elements=576, position=0, shares=()),
)
BOTH = msgspec.structs.replace(LARGE, draft=SMALL)


def spec(uri: str = "hf://org/small", **engine: Any) -> Json:
    speculation = {"method": "draft", "model": {"uri": uri}}
    return {"model": {"uri": "hf://org/large"}, "engine": {"speculation": speculation, **engine}}


def said(found: ModelReport | ModelFailure) -> str:
    return encode_inspection(found).decode()


def commands(world: World) -> list[str]:
    pod = world.children["Deployment", "tiny"]["spec"]["template"]["spec"]
    return [word for container in pod["initContainers"] for word in container["command"] if "://" in word]


def inspected(world: World) -> list[str]:
    (job,) = [body for (kind, _), body in world.children.items() if kind == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return [word for word in container["command"] if "://" in word]


@pytest.fixture
def world(make_owner: Make, installation: Installation) -> World:
    world = World(make_owner(spec()), installation)
    world.said = said(BOTH)
    return world


def test_both_models_are_inspected_pinned_and_shown(world: World) -> None:
    final = world.settle()
    assert commands(world) == ["hf://org/large@1a46e", "hf://org/small@5ma11"]
    assert final.status["model"]["draft"] | {"identity": ""} == {
        "identity": "",
        "resolvedRevision": "5ma11",
        "architecture": "llama",
        "parameters": 135_000_000,
        "weightsBytes": 270_000_000,
        "kvBytesPerToken": 23_040,
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (spec("hf://org/tiny"), ["hf://org/large@1a46e", "hf://org/tiny"]),
        ({**spec(), "model": {"uri": "hf://org/huge"}}, ["hf://org/huge", "hf://org/small@5ma11"]),
        (spec(maxModelLen=128), None),
    ],
)
def test_another_of_the_two_leaves_the_first_at_its_commit(
    changes: Json, expected: list[str] | None, world: World, make_owner: Make
) -> None:
    world.settle()
    world.owner, world.said = make_owner(changes, status=world.owner.status), None
    if expected is None:  # neither changed: nothing to inspect
        world.settle()
        assert commands(world) == ["hf://org/large@1a46e", "hf://org/small@5ma11"]
        return
    status = world.pass_().status
    world.pass_()
    assert inspected(world) == expected
    assert "draft" not in status.get("model", {}) or expected[1] == "hf://org/small@5ma11"


@pytest.mark.parametrize("lost", ["status", "children"])
def test_a_lost_record_moves_no_draft_model(lost: str, world: World, make_owner: Make) -> None:
    status = world.settle().status
    if lost == "status":
        world.owner = make_owner(spec())
        assert world.settle().status["model"] == status["model"]
        return
    world.children, world.pods = {}, {}
    world.pass_()
    assert inspected(world) == ["hf://org/large@1a46e", "hf://org/small@5ma11"]


def test_a_draft_model_that_does_not_fit_is_refused_by_its_field(world: World) -> None:
    why = "the draft model has another vocabulary than the model (2002 tokens, 4 there; different: 'a' and 1 more)"
    world.said, world.failed = None, said(ModelFailure(reason="DraftModelMismatch", message=why, draft=True))
    for _ in range(3):
        decided = world.pass_()
        world.run()
    ready = condition(decided, "Ready")
    assert ready["reason"] == condition(decided, "ModelResolved")["reason"] == "DraftModelMismatch"
    assert ready["message"] == f"spec.engine.speculation.model: 'hf://org/small': {why}"
    assert ("Deployment", "tiny") not in world.children


def test_a_record_says_which_of_the_models_it_is_about(world: World) -> None:
    assert model_job.recorded(world.owner, {"metadata": {}}) is None
    older = {"metadata": {"annotations": {model_job.ANNOTATION_MODEL: '{"identity": "x", "report": null}'}}}
    record = model_job.recorded(world.owner, older)
    assert record is not None
    assert (record.of_model, record.of_draft) == (False, False)


def expect(owner: LLMDeployment, found: ModelReport) -> Estimate:
    expected = estimate(owner.spec, "16Gi", found)
    assert expected is not None
    return expected


def test_a_block_has_one_of_the_draft_model(make_owner: Make) -> None:
    both, alone = expect(make_owner(spec()), BOTH), expect(make_owner(), LARGE)
    assert both.weights == alone.weights + 270_000_000
    assert both.block == alone.block + 16 * 2 * 11_520
    assert both.activations > alone.activations
    # A sequence has a block of each table for the same tokens, each with one of the draft model.
    tables = (KvTables(1, None), KvTables(3, 1023))
    windows = expect(make_owner(spec()), msgspec.structs.replace(BOTH, kv_tables=tables))
    assert windows.block == alone.block // 4 + 16 * 2 * 11_520


def test_only_the_weights_of_the_model_are_quantized(make_owner: Make) -> None:
    assert expect(make_owner(spec(quantization="int8")), BOTH).weights == 1_900_000_000 + 270_000_000


def test_an_unknown_draft_model_is_left_to_the_server(make_owner: Make) -> None:
    assert estimate(make_owner(spec()).spec, "16Gi", LARGE) is None


def test_too_little_memory_names_the_part_of_the_draft_model(make_owner: Make) -> None:
    owner = make_owner(spec())
    found = estimate(owner.spec, "3Gi", BOTH)
    assert found is not None
    assert "the weights take 3500Mi (258Mi of the draft model)" in refusal(owner.spec, found)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state_bytes": 1 << 20}, "llama has state layers, whose states cannot go back to before a wrong guess"),
        ({"whole_prompts": True}, "llama is an encoder and generates no text"),
    ],
)
@pytest.mark.parametrize("speculation", [{"method": "ngram"}, {"method": "draft", "model": {"uri": "pvc://c/small"}}])
def test_models_whose_answers_cannot_be_guessed_are_refused(
    changes: Json, why: str, speculation: Json, make_owner: Make
) -> None:
    owner = make_owner({"engine": {"speculation": speculation}})
    refused = fit.refusal(owner.spec, msgspec.structs.replace(LARGE, **changes), fit.MemoryFit())
    assert refused is not None
    assert (refused.reason, refused.message) == (
        "SpeculationUnsupported",
        f"spec.engine.speculation.method: {why}; leave speculation out",
    )
    assert fit.refusal(make_owner().spec, LARGE, fit.MemoryFit()) is None


@pytest.mark.parametrize(
    ("model", "draft", "ports"),
    [
        ("pvc://claim/large", "hf://org/small", [443]),
        ("hf://org/large", "oci://registry:5000/small:1", [443, 5000]),
        ("pvc://claim/large", "pvc://claim/small", None),
    ],
)
def test_the_inspection_may_reach_the_source_of_the_draft_model(
    model: str, draft: str, ports: list[int] | None, make_owner: Make
) -> None:
    owner = make_owner({**spec(draft), "model": {"uri": model}})
    egress = protection.inspection_policy(owner)["spec"]["egress"]
    assert ([port["port"] for port in egress[-1]["ports"]] if egress else None) == ports
