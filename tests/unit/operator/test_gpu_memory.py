"""A model that fits no GPU is refused before a pod is made; what its GPU leaves for the KV cache is estimated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.operator.world import World, condition

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.observe import fit
from octavo_operator.observe.gpu_fit import Card, cards
from octavo_operator.observe.gpu_memory import estimate
from octavo_operator.observe.gpu_refusal import fitted, gpu_refusal
from octavo_operator.reconcile.plan import CARDS_SECONDS
from octavo_operator.resources.common import Installation
from octavo_operator.resources.config import quantity
from octavo_operator.resources.placement import pod_fields
from octavo_protocol.model import GpuReport, GpuShare, ModelReport, encode_inspection

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
GIB = 1 << 30


def share(ranks: int) -> GpuShare:
    """An 8B model on so many GPUs."""
    bf16 = 16 * GIB // ranks
    return GpuShare(
        ranks=ranks,
        weights={"auto": bf16, "bfloat16": bf16, "float32": 2 * bf16, "fp8": bf16 * 9 // 16},
        kv_elements_per_token=65_536 // ranks,
        token=16_800,
        token_elements=64_000 // ranks,
        widest=14_336,
        row=1_400_000,
        fixed=17_000_000,
        fp8=("fp8",),
    )


BIG = ModelReport(
    architecture="llama",
    format="bf16",
    parameters=8_000_000_000,
    max_length=131_072,
    gpu=GpuReport(head_dim=128, row_elements=4096, position=512, shares=tuple(map(share, (1, 2, 4)))),
)
A2 = Card("NVIDIA-A2", 15356 << 20, 4)
L4 = Card("NVIDIA-L4", 23034 << 20, 1)
H100 = Card("NVIDIA-H100-80GB-HBM3", 81559 << 20, 8)


@pytest.fixture
def gpu(make_owner: Make) -> Make:
    def make(engine: Json | None = None, count: int = 1, **changes: Any) -> LLMDeployment:
        shared = {"parallelism": {"tensor": count}, **(engine or {})}
        return make_owner({"engine": shared, "resources": {"gpu": {"count": count}}}, **changes)

    return make


def refusal(owner: LLMDeployment, *found: Card) -> str:
    expected = fitted(owner.spec, BIG, found)
    assert expected is not None
    return gpu_refusal(owner.spec, BIG, expected)


def test_too_small_a_gpu_is_refused_with_every_number(gpu: Make) -> None:
    assert refusal(gpu(), A2) == (
        "spec.resources.gpu: NVIDIA-A2 with 15356Mi is too small: the weights take 16384Mi (bf16), the KV pool at "
        "least 4Mi, working memory 853Mi, CUDA graphs 456Mi, the CUDA context and a reserve 1536Mi, 19233Mi in all on "
        "each GPU; use GPUs with at least 19233Mi (spec.resources.gpu.minMemory), or set spec.engine.quantization to "
        "fp8, or set spec.engine.parallelism.tensor and spec.resources.gpu.count to 2"
    )


def test_a_model_that_only_transformers_computes_has_a_lower_bound(gpu: Make) -> None:
    share_ = GpuShare(
        ranks=1,
        weights={"auto": 16 * GIB},
        kv_elements_per_token=65_536,
        token=0,
        token_elements=0,
        widest=0,
        row=1_000_000,
        fixed=0,
    )
    report = GpuReport(head_dim=1, row_elements=0, position=0, shares=(share_,), graphs=False)
    found = msgspec.structs.replace(BIG, architecture="OwnForCausalLM", format="", gpu=report)
    small, large = (fitted(gpu().spec, found, [card]) for card in (A2, H100))
    assert small is not None
    assert large is not None
    message = gpu_refusal(gpu().spec, found, small)
    assert "NVIDIA-A2 with 15356Mi is too small: the weights take 16384Mi, the KV pool at least 4Mi" in message
    assert "CUDA graphs" not in message
    assert gpu_refusal(gpu().spec, found, large) == ""
    refused = fit.refusal(gpu(count=2).spec, found, fit.MemoryFit())
    assert refused is not None
    assert refused.message.endswith("use 1")


def test_each_of_several_gpus_holds_its_part_of_adapters(gpu: Make) -> None:
    """Elements for each rank of an adapter, and its biases, of each number of GPUs."""
    assert BIG.gpu is not None
    shares = tuple(
        msgspec.structs.replace(one, adapter_elements=3_000_000 // one.ranks, adapter_fixed=1_000_000 // one.ranks)
        for one in BIG.gpu.shares
    )
    found = msgspec.structs.replace(BIG, gpu=msgspec.structs.replace(BIG.gpu, shares=shares))
    limits = {"adapters": {"maxLoaded": 8, "maxRank": 20}}
    for count in (1, 2, 4):
        expected, without = (estimate(gpu(engine, count).spec, found, H100) for engine in (limits, {}))
        assert expected is not None
        assert without is not None
        # Ranks are padded to 24; 2 bytes each.
        assert expected.adapters == 8 * (24 * 3_000_000 + 1_000_000) // count * 2 + (1 << 16)
        assert without.adapters == 0
        assert expected.room < without.room - expected.adapters


def test_the_example_of_the_guide(gpu: Make) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/gpus.md").read_text()
    assert refusal(gpu({"maxModelLen": 65_536}), L4) in " ".join(guide.split())


def test_a_slice_of_a_gpu_has_ways_out_of_its_own(make_owner: Make) -> None:
    name = "nvidia.com/mig-1g.12gb"
    owner = make_owner({"resources": {"gpu": {"count": 1, "resourceName": name}}})
    message = refusal(owner, Card("NVIDIA-H100-80GB-HBM3", 11_008 << 20, 7))
    assert f"spec.resources.gpu: {name} with 11008Mi is too small: " in message
    assert message.endswith("; use GPUs with at least 19233Mi (spec.resources.gpu.resourceName)")


def test_a_pool_of_fewer_than_two_blocks_is_refused(gpu: Make) -> None:
    for engine in ({"kv": {"memory": "3Mi"}}, {"kv": {"memory": "3Mi"}, "maxModelLen": 16}):
        owner = gpu(engine)
        for found in (None, (H100,)):
            expected = fitted(owner.spec, BIG, found)
            assert expected is not None
            assert gpu_refusal(owner.spec, BIG, expected) == (
                "spec.engine.kv.memory: a server needs two blocks of 16 tokens, 4194304 bytes on each GPU, and the "
                "pool has 3145728; set at least 4Mi"
            )
    assert refusal(gpu({"kv": {"memory": "4Mi"}}), H100) == ""


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"maxModelLen": 65_536},
        {"kv": {"memory": "8Gi"}},
        {"kv": {"memory": "20Gi"}, "maxModelLen": 131_072},
        {"profile": "throughput", "maxModelLen": 32_768},
        {"kv": {"dtype": "int8"}, "maxModelLen": 131_072},
        {"quantization": "fp8", "kv": {"memory": "12Gi"}},
    ],
)
@pytest.mark.parametrize("card", [A2, L4])
def test_each_way_out_leads_out(engine: Json, card: Card, gpu: Make) -> None:
    message = refusal(gpu(engine), card)
    if not message:
        return
    least = re.search(r"use GPUs with at least (\d+Mi)", message)
    assert least is not None
    larger = Card("", int(quantity(least[1])), 1)
    assert refusal(gpu(engine), larger) == ""
    assert refusal(gpu(engine), Card("", larger.memory - (2 << 20), 1)) != ""
    if "quantization to fp8" in message:
        assert refusal(gpu({**engine, "quantization": "fp8"}), card) == ""
    if ranks := re.search(r"gpu.count to (\d+)", message):
        assert int(ranks[1]) <= card.count
        assert refusal(gpu(engine, int(ranks[1])), card) == ""
    if "profile to latency" in message:
        assert refusal(gpu({**engine, "profile": "latency"}), card) == ""
    lower = re.search(r"lower spec.engine.maxModelLen to (\d+)(?: and spec.engine.kv.memory to (\d+Mi))?", message)
    if lower:
        memory = {"kv": {**engine.get("kv", {}), "memory": lower[2]}} if lower[2] else {}
        assert refusal(gpu({**engine, "maxModelLen": int(lower[1]), **memory}), card) == ""
    if lower := re.search(r"lower spec.engine.kv.memory to (\d+Mi)", message):
        assert refusal(gpu({**engine, "kv": {"memory": lower[1]}}), card) == ""


def test_ways_out_are_found_at_all(gpu: Make) -> None:
    """Else the test above tests nothing."""
    assert "lower spec.engine.maxModelLen to" in refusal(gpu({"maxModelLen": 65_536}), L4)
    assert "lower spec.engine.kv.memory to" in refusal(gpu({"kv": {"memory": "8Gi"}}), L4)
    tight = Card("", 18_800 << 20, 1)
    assert "set spec.engine.profile to latency" in refusal(gpu(), tight)


def test_a_pool_too_small_for_one_sequence_needs_no_gpu_to_be_refused(gpu: Make) -> None:
    owner = gpu({"kv": {"memory": "1Gi"}, "maxModelLen": 16_384})
    expected = fitted(owner.spec, BIG, None)
    assert expected is not None
    assert gpu_refusal(owner.spec, BIG, expected) == (
        "spec.engine.maxModelLen: the KV of one sequence of 16384 tokens takes 2048Mi on each GPU, and the pool has "
        "1024Mi (spec.engine.kv.memory); set spec.engine.kv.memory to 2048Mi or more, or lower spec.engine.maxModelLen "
        "to 8192"
    )


def test_tokens_are_those_of_the_smallest_gpu_that_fits(gpu: Make) -> None:
    owner = gpu()
    expected = fitted(owner.spec, BIG, (A2, L4, H100))
    assert expected is not None
    assert expected.card == L4
    assert expected.kv_tokens == pytest.approx((23034 - 19229) * 8, rel=0.01)
    assert refusal(owner, A2, L4, H100) == ""
    large = fitted(owner.spec, BIG, (H100,))
    assert large is not None
    assert large.kv_tokens > 15 * expected.kv_tokens


def test_eight_bits_of_kv_hold_nearly_twice_the_tokens(gpu: Make) -> None:
    tokens = {}
    for kind in ("auto", "fp8", "int8"):
        expected = fitted(gpu({"kv": {"dtype": kind}}).spec, BIG, (H100,))
        assert expected is not None
        tokens[kind] = expected.kv_tokens
    assert tokens["fp8"] == tokens["int8"] == pytest.approx(tokens["auto"] * 2 * 32 / 33, rel=0.001)


@pytest.mark.parametrize("found", [None, (), (Card("NVIDIA-L4", 0, 1),), (Card("", 0, 1), L4)])
def test_a_gpu_of_unknown_size_is_left_to_the_server(found: tuple[Card, ...] | None, gpu: Make) -> None:
    assert fitted(gpu().spec, BIG, found) is None
    # The pool's size is given, so its tokens are known.
    given = fitted(gpu({"kv": {"memory": "8Gi"}}).spec, BIG, found)
    assert given is not None
    assert given.kv_tokens == 65_536
    assert gpu_refusal(gpu({"kv": {"memory": "8Gi"}}).spec, BIG, given) == ""


@pytest.mark.parametrize("flag", ["--kv-memory=64Mi", "--kv-dtype=int8", "--profile=latency", "--no-cuda-graphs"])
def test_what_only_the_server_can_tell_is_left_to_it(flag: str, gpu: Make) -> None:
    assert estimate(gpu({"extraArgs": [flag]}).spec, BIG, A2) is None
    # An inspection by an older image, and a model without a plan for GPUs.
    assert estimate(gpu().spec, msgspec.structs.replace(BIG, gpu=None), A2) is None
    assert estimate(gpu({"quantization": "fp8", "dtype": "float32"}).spec, BIG, A2) is None


def test_a_quantization_without_effect_is_refused_in_the_servers_words(gpu: Make, make_owner: Make) -> None:
    found = msgspec.structs.replace(BIG, format="gptq int4 g128", quantized=True)
    for owner in (gpu({"quantization": "fp8"}), make_owner({"engine": {"quantization": "int8"}})):
        refused = fit.refusal(owner.spec, found, fit.MemoryFit())
        assert refused is not None
        assert refused.reason == "QuantizationConflict"
        kind = owner.spec.engine.settings.quantization
        assert refused.message == (
            f"spec.engine.quantization: quantization {kind} has no effect: the checkpoint is already quantised; leave "
            "it at auto (its format is gptq int4 g128)"
        )
        assert fit.refusal(owner.spec, BIG, fit.MemoryFit()) is None
    assert fit.refusal(gpu().spec, found, fit.MemoryFit()) is None


def test_gpus_that_cannot_share_a_model_are_refused(gpu: Make) -> None:
    refused = fit.refusal(gpu(count=3).spec, BIG, fit.MemoryFit())
    assert refused is not None
    assert refused.reason == "ParallelismUnsupported"
    assert refused.message == (
        "spec.engine.parallelism.tensor: 3 GPUs cannot share this model (its format is bf16): each gets whole heads, "
        "and whole groups of quantized columns, which act-order mixes; use 1, 2, 4"
    )
    assert fit.refusal(gpu({"image": "another:1"}, 3).spec, BIG, fit.MemoryFit()) is None
    assert fit.refusal(gpu(count=3).spec, msgspec.structs.replace(BIG, gpu=None), fit.MemoryFit()) is None


def test_what_another_image_needs_is_left_to_it(gpu: Make) -> None:
    owner = gpu({"image": "another:1"})
    for found in (A2, H100):
        expected = fit.expected(owner.spec, "8Gi", BIG, (found,))
        assert expected.gpu is not None
        assert fit.refusal(owner.spec, BIG, expected) is None


def test_only_weights_with_an_order_need_another_copy_of_activations(gpu: Make) -> None:
    assert BIG.gpu is not None
    shares = tuple(msgspec.structs.replace(one, ordered=("auto",)) for one in BIG.gpu.shares)
    found = msgspec.structs.replace(BIG, gpu=msgspec.structs.replace(BIG.gpu, shares=shares))
    for kind, more in (("auto", True), ("bfloat16", False)):
        spec = gpu({"dtype": kind}).spec
        before, after = estimate(spec, BIG, H100), estimate(spec, found, H100)
        assert before is not None
        assert after is not None
        assert (after.working > before.working) == more


def node(labels: Json | None = None, *, count: str = "1", taints: list[Json] | None = None, **resources: str) -> Json:
    allocatable = {"nvidia.com/gpu": count, **{name.replace("__", "/"): value for name, value in resources.items()}}
    gpu = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}
    return {
        "metadata": {"labels": {**gpu, **(labels or {})}},
        "spec": {"taints": taints or []},
        "status": {"allocatable": allocatable},
    }


RESERVED = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
TEAM = {"key": "team", "value": "a", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("changes", "nodes", "expected"),
    [
        ({}, [node(), node()], [L4]),
        ({}, [node(count="0")], []),
        ({}, [node(taints=[RESERVED, {"key": "x", "effect": "PreferNoSchedule"}])], [L4]),
        ({}, [node(taints=[TEAM])], []),
        ({}, [node(taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}])], [L4]),
        ({"scheduling": {"tolerations": [{"key": "team", "value": "a"}]}}, [node(taints=[TEAM])], [L4]),
        ({"scheduling": {"tolerations": [{"key": "team", "value": "b"}]}}, [node(taints=[TEAM])], []),
        ({"scheduling": {"tolerations": [{"operator": "Exists"}]}}, [node(taints=[TEAM])], [L4]),
        (
            {"scheduling": {"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]}},
            [node(taints=[TEAM])],
            [],
        ),
        ({"scheduling": {"nodeSelector": {"zone": "a"}}}, [node(), node({"zone": "b"})], []),
        ({"scheduling": {"nodeSelector": {"zone": "a"}}}, [node({"zone": "a"})], [L4]),
        ({"resources": {"gpu": {"product": "NVIDIA-H100"}}}, [node()], []),
        ({"resources": {"gpu": {"minMemory": "24Gi"}}}, [node()], []),
        ({"resources": {"gpu": {"minMemory": "24G"}}}, [node()], [L4]),
        ({"resources": {"gpu": {"count": 2}}, "engine": {"parallelism": {"tensor": 2}}}, [node()], []),
        ({}, [node({"nvidia.com/gpu.memory": "much"})], [Card("NVIDIA-L4", 0, 1)]),
        ({}, [node({"nvidia.com/gpu.compute.major": "7"})], []),
        ({}, [node({"nvidia.com/gpu.compute.major": "7"}), node({"nvidia.com/gpu.compute.major": "8"})], [L4]),
        ({}, [node({"nvidia.com/gpu.compute.major": "10"})], [L4]),
    ],
)
def test_gpus_are_those_of_nodes_that_a_pod_may_run_on(
    changes: Json, nodes: list[Json], expected: list[Card], make_owner: Make
) -> None:
    base = {"resources": {"gpu": {"count": 1}}}
    resources = {"gpu": {**base["resources"]["gpu"], **changes.get("resources", {}).get("gpu", {})}}
    owner = make_owner({**changes, "resources": resources})
    assert list(cards(pod_fields(owner), owner.spec.resources.gpu, nodes)) == expected


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, False),
        ({"key": "other", "operator": "DoesNotExist"}, True),
        ({"key": "size", "operator": "Lt", "values": ["7"]}, False),
        ({"key": "size", "operator": "Gt", "values": ["6"]}, True),
        ({"key": "zone", "operator": "Gt", "values": ["6"]}, False),
    ],
)
def test_nodes_are_compared_as_the_scheduler_does(requirement: Json, fits: bool, make_owner: Make) -> None:
    term = {"matchExpressions": [requirement]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    owner = make_owner({"scheduling": {"affinity": {"nodeAffinity": affinity}}, "resources": {"gpu": {"count": 1}}})
    found = cards(pod_fields(owner), owner.spec.resources.gpu, [node({"zone": "a", "size": "7"})])
    assert bool(found) == fits


def test_a_slice_of_a_gpu_has_its_own_memory(make_owner: Make) -> None:
    name = "nvidia.com/mig-1g.5gb"
    owner = make_owner({"resources": {"gpu": {"count": 1, "resourceName": name}}})
    one = node({f"{name}.memory": "4864"})
    one["status"]["allocatable"][name] = "7"
    assert [card.memory for card in cards(pod_fields(owner), owner.spec.resources.gpu, [one])] == [4864 << 20]


def test_no_pod_is_made_for_a_model_that_fits_no_gpu(gpu: Make, installation: Installation) -> None:
    world = World(gpu(), installation)
    world.said, world.cards = encode_inspection(BIG).decode(), (A2,)
    for _ in range(3):
        decided = world.pass_()
        world.run()
    assert ("Deployment", "tiny") not in world.children
    ready = condition(decided, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ModelTooLarge")
    assert "NVIDIA-A2 with 15356Mi is too small" in ready["message"]
    assert decided.actions == ()
    # Nodes are not watched.
    assert decided.requeue_after == CARDS_SECONDS
    world.cards = (A2, H100)
    world.owner = gpu(status=json.loads(json.dumps(decided.status)))
    final = world.settle()
    assert condition(final, "Ready")["status"] == "True"
    capacity, model = final.status["capacity"], final.status["model"]
    assert capacity["estimatedGpuMemoryBytes"] <= H100.memory
    assert capacity["estimatedKvTokensPerReplica"] > 400_000
    assert (model["format"], model["weightsBytes"], model["kvBytesPerToken"]) == ("bf16", 16 * GIB, 131_072)


def test_what_serves_goes_on_when_its_gpus_leave_the_cluster(gpu: Make, installation: Installation) -> None:
    world = World(gpu(), installation)
    world.said, world.cards = encode_inspection(BIG).decode(), (H100,)
    world.settle()
    world.cards = (A2,)
    world.owner = gpu(status=world.owner.status)
    assert condition(world.settle(), "SpecValid")["status"] == "True"
    assert len(world.pods) == 1
