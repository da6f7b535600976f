"""A model that cannot fit is refused before a pod is made, with numbers that help."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.operator.world import World, condition

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.observe import fit
from octavo_operator.observe.memory_estimate import Estimate, estimate, refusal
from octavo_operator.reconcile.plan import Apply
from octavo_operator.resources.common import Installation
from octavo_operator.resources.config import quantity
from octavo_protocol.model import GpuReport, ModelReport, encode_inspection

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
BIG = ModelReport(
    architecture="llama",
    parameters=8_000_000_000,
    weights={"auto": 16_000_000_000, "bfloat16": 16_000_000_000, "float32": 32_000_000_000},
    kv_elements_per_token=65_536,
    max_length=131_072,
    token_bytes=200_000,
    row_bytes=513_024,
    gpu=GpuReport(head_dim=128, row_elements=4096, position=512, shares=()),
)


def expect(owner: LLMDeployment, memory: str, found: ModelReport) -> Estimate:
    expected = estimate(owner.spec, memory, found)
    assert expected is not None
    return expected


def test_rounded_weights_take_their_own_bytes(make_owner: Make) -> None:
    owner = make_owner({"engine": {"quantization": "int8"}})
    found = msgspec.structs.replace(BIG, weights={**BIG.weights, "int8": 8_500_000_000})
    assert expect(owner, "64Gi", found).weights == 8_500_000_000
    # An older image does not report them: only the server can tell.
    assert estimate(owner.spec, "16Gi", BIG) is None
    assert estimate(make_owner({"engine": {"extraArgs": ["--quantization=int8"]}}).spec, "16Gi", found) is None


def test_too_little_memory_is_refused_with_every_number(make_owner: Make) -> None:
    owner = make_owner({"engine": {"maxModelLen": 8192, "kv": {"memory": "4Gi"}}})
    message = refusal(owner.spec, expect(owner, "16Gi", BIG))
    assert message == (
        "spec.resources.memory: 16384Mi is too little: the weights take 15259Mi, the KV pool 4096Mi (one sequence of "
        "8192 tokens takes 1024Mi), working memory 133Mi, the processes 160Mi, 19648Mi in all; set at least "
        "19648Mi, or lower spec.engine.maxModelLen to 6656 and spec.engine.kv.memory to 832Mi"
    )


@pytest.mark.parametrize(
    "engine",
    [
        {"maxModelLen": 8192, "kv": {"memory": "4Gi"}},
        {"maxModelLen": 2048, "kv": {"memory": "4Gi"}},
        {"kv": {"memory": "4Gi"}},
        {},
    ],
)
def test_each_way_out_leads_out(engine: Json, make_owner: Make) -> None:
    owner = make_owner({"engine": engine})
    message = refusal(owner.spec, expect(owner, "16Gi", BIG))
    least = re.search(r"set at least (\d+Mi)", message)
    assert least is not None
    if "kv" in engine:
        assert refusal(owner.spec, expect(owner, least[1], BIG)) == ""
    lower = re.search(r"lower (?:spec.engine.maxModelLen to (\d+) and )?spec.engine.kv.memory to (\d+Mi)", message)
    assert lower is not None
    changed = {**engine, "kv": {"memory": lower[2]}} | ({"maxModelLen": int(lower[1])} if lower[1] else {})
    owner = make_owner({"engine": changed})
    assert refusal(owner.spec, expect(owner, "16Gi", BIG)) == ""


def test_the_pool_takes_its_percent_of_what_the_processes_leave(make_owner: Make) -> None:
    def pool(percent: int | None) -> int:
        engine = {"kv": {"memoryPercent": percent}} if percent else {}
        return expect(make_owner({"engine": engine}), "64Gi", BIG).kv

    assert pool(None) == pool(25)
    assert pool(50) == pytest.approx(2 * pool(25), rel=0.001)


def test_a_percent_too_small_for_one_sequence_is_named(make_owner: Make) -> None:
    owner = make_owner({"engine": {"maxModelLen": 131_072, "kv": {"memoryPercent": 5}}})
    message = refusal(owner.spec, expect(owner, "64Gi", BIG))
    assert "set spec.engine.kv.memory to 16384Mi or more in place of memoryPercent" in message
    assert "(5 % of what spec.resources.memory leaves)" in message


@pytest.mark.parametrize("flag", ["--kv-memory=64Mi", "--kv-memory-percent=50", "--profile=latency"])
def test_what_only_the_server_can_tell_is_left_to_it(flag: str, make_owner: Make) -> None:
    owner = make_owner({"engine": {"extraArgs": [flag]}})
    assert estimate(owner.spec, "1Gi", BIG) is None
    assert estimate(make_owner().spec, "1Gi", ModelReport(architecture="mamba")) is None


def test_no_pod_is_made_for_a_model_that_cannot_fit(make_owner: Make, installation: Installation) -> None:
    world = World(make_owner({"resources": {"memory": "16Gi"}}), installation)
    world.said = encode_inspection(BIG).decode()
    for _ in range(3):
        decided = world.pass_()
        world.run()
    assert ("Deployment", "tiny") not in world.children
    ready = condition(decided, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ModelTooLarge")
    assert "spec.resources.memory: 16384Mi is too little" in ready["message"]
    assert condition(decided, "SpecValid")["reason"] == "ModelTooLarge"
    assert condition(decided, "ModelResolved")["reason"] == "Resolved"
    assert decided.actions == ()
    world.owner = make_owner({"resources": {"memory": "32Gi"}}, status=json.loads(json.dumps(decided.status)))
    final = world.settle()
    assert condition(final, "Ready")["status"] == "True"
    assert final.status["capacity"]["estimatedMemoryBytes"] < quantity("32Gi")


def test_what_serves_goes_on_when_the_next_spec_cannot_fit(make_owner: Make, installation: Installation) -> None:
    world = World(make_owner({"resources": {"memory": "64Gi"}}), installation)
    world.said = encode_inspection(BIG).decode()
    world.settle()
    world.owner = make_owner({"resources": {"memory": "8Gi"}}, status=world.owner.status)
    decided = world.pass_()
    assert not [action for action in decided.actions if isinstance(action, Apply)]
    ready = condition(decided, "Ready")
    assert ready["message"].endswith("; 1 replicas of the previous spec keep serving")
    assert len(world.pods) == 1


ENCODER = ModelReport(
    architecture="roberta",
    weights={"auto": 1 << 30},
    kv_elements_per_token=2048,
    max_length=8192,
    token_bytes=40_000,
    row_bytes=20_000,
    whole_prompts=True,
    gpu=GpuReport(head_dim=64, row_elements=1024, position=0, shares=()),
)


def test_an_encoder_needs_the_kv_of_one_step(make_owner: Make) -> None:
    found = expect(make_owner({"engine": {"scheduler": {"maxRunningRequests": 16}}}), "4Gi", ENCODER)
    assert found.length == 8192
    assert found.kv == (8192 + 2 * 16 * 16) * 2048 * 2
    assert refusal(make_owner().spec, found) == ""


def test_an_encoder_is_refused_where_it_cannot_run(make_owner: Make) -> None:
    gpu = make_owner({"resources": {"gpu": {"count": 1}}})
    refused = fit.refusal(gpu.spec, ENCODER, fit.MemoryFit())
    assert refused is not None
    assert refused.reason == "GpuUnsupported"
    assert "roberta is an encoder, and only CPUs compute attention in both directions" in refused.message
    small = make_owner({"engine": {"scheduler": {"maxBatchedTokens": 2048, "maxRunningRequests": 16}}})
    refused = fit.refusal(small.spec, ENCODER, fit.MemoryFit())
    assert refused is not None
    assert refused.reason == "StepTooSmall"
    assert "maxBatchedTokens: 2048 is less than the longest prompt of 8192 tokens" in refused.message
    shorter = {"maxModelLen": 2048, "scheduler": {"maxBatchedTokens": 2048, "maxRunningRequests": 16}}
    assert fit.refusal(make_owner({"engine": shorter}).spec, ENCODER, fit.MemoryFit()) is None
