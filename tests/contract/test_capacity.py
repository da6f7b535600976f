"""The operator's estimate before a load agrees with the engine's plan after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.adapters import save_adapter
from tests.support.native import needs_native
from tokenizers import Tokenizer, models

from octavo_inference.backends.cpu.native import library
from octavo_inference.checkpoints.peft_tokens import TEXT_FILES
from octavo_inference.common.errors import SettingsError
from octavo_inference.config.engine import GPU_PROFILES, KV_MEMORY_PERCENT, PROFILES, EngineSettings
from octavo_inference.core.kv_cache_sizing import fit
from octavo_inference.download.adapter_sync import OVERHEAD_BYTES
from octavo_inference.download.inspect import inspect
from octavo_inference.engine.factory import load_engine
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.observe.gpu_fit import Card
from octavo_operator.observe.gpu_memory import GpuEstimate, estimate_of
from octavo_operator.observe.memory_estimate import PROCESSES, Estimate, estimate, refusal
from octavo_operator.resources.adapters import disk_bytes
from octavo_protocol.model import GpuReport, GpuShare, ModelReport

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]


@pytest.fixture(scope="module")
def smollm2() -> ModelReport:
    return inspect("smollm2")


def expect(owner: LLMDeployment, memory: str, found: ModelReport) -> Estimate:
    expected = estimate(owner.spec, memory, found)
    assert expected is not None
    return expected


def save_dense(folder: Path, rank: int) -> Path:
    """An adapter of the built-in model that changes all matrices."""
    hidden, inner, keys, vocab = 576, 1536, 192, 49_152
    shapes = {f"self_attn.{name}_proj": (hidden, hidden) for name in "qo"}
    shapes |= {f"self_attn.{name}_proj": (keys, hidden) for name in "kv"}
    shapes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    tensors = {}
    for layer in range(30):
        for name, (rows, columns) in shapes.items():
            tensors[f"model.layers.{layer}.{name}.lora_A.weight"] = np.ones((rank, columns), np.float32)
            tensors[f"model.layers.{layer}.{name}.lora_B.weight"] = np.ones((rows, rank), np.float32)
    tensors["model.embed_tokens.lora_embedding_A"] = np.ones((rank, vocab), np.float32)
    tensors["model.embed_tokens.lora_embedding_B"] = np.ones((hidden, rank), np.float32)
    tensors["lm_head.lora_A.weight"] = np.ones((rank, hidden), np.float32)
    tensors["lm_head.lora_B.weight"] = np.ones((vocab, rank), np.float32)
    return save_adapter(folder, tensors, r=rank)


@pytest.fixture(params=library.available() or ["none"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each variant of the CPU kernels that this machine can run."""
    monkeypatch.setenv("OCTAVO_CPU_VARIANT", request.param)
    library.load.cache_clear()
    yield request.param
    library.load.cache_clear()


@needs_native
@pytest.mark.slow  # loads a model for each case on each variant of the kernels
@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ({"kv": {"memory": "64Mi"}, "maxModelLen": 2048}, {"kv_memory": 64 << 20, "max_model_len": 2048}),
        ({"kv": {"memory": "32Mi"}, "profile": "latency"}, {"kv_memory": 32 << 20, "profile": "latency"}),
        (
            {"kv": {"memory": "96Mi", "blockSize": 64}, "dtype": "float32", "scheduler": {"maxRunningRequests": 8}},
            {"kv_memory": 96 << 20, "block_size": 64, "dtype": "float32", "max_running_requests": 8},
        ),
        (
            {"kv": {"memory": "48Mi"}, "scheduler": {"preemption": "swap"}},
            {"kv_memory": 48 << 20, "preemption": "swap"},
        ),
    ],
)
def test_the_engine_takes_what_was_expected(
    engine: Json, settings: dict[str, Any], make_owner: Make, smollm2: ModelReport, variant: str
) -> None:
    expected = expect(make_owner({"engine": {"threads": 2, **engine}}), "2Gi", smollm2)
    loaded = load_engine(EngineSettings("smollm2", threads=2, backend="cpu", **settings))
    assert library.load().variant == variant
    plan = loaded.memory
    assert plan is not None
    assert expected.kv == plan.kv_pool
    assert expected.kv_tokens == plan.kv_pool // expected.block * (loaded.settings.block_size or 0)
    assert expected.weights == pytest.approx(plan.weights, rel=0.02)
    assert expected.swap == pytest.approx(plan.swap, rel=0.05)
    # Never less than any instruction set takes, and little more than the one that takes least.
    assert plan.activations <= expected.activations <= 1.3 * plan.activations
    total = plan.grows
    assert expected.weights + expected.kv + expected.activations + expected.swap == pytest.approx(total, rel=0.03)


@needs_native
def test_the_engine_takes_what_was_expected_with_a_draft_model(make_owner: Make, smollm2: ModelReport) -> None:
    speculation = {"method": "draft", "model": {"uri": "pvc://claim/small"}}
    engine = {"threads": 2, "kv": {"memory": "64Mi"}, "maxModelLen": 512, "speculation": speculation}
    found = msgspec.structs.replace(smollm2, draft=smollm2)
    expected = expect(make_owner({"engine": engine}), "2Gi", found)
    sizes = {"kv_memory": 64 << 20, "max_model_len": 512}
    plan = load_engine(
        EngineSettings("smollm2", threads=2, backend="cpu", speculation="draft", speculation_model="smollm2", **sizes)
    ).memory
    assert plan is not None
    assert expected.kv == plan.kv_pool
    assert expected.weights == pytest.approx(plan.weights, rel=0.02)
    assert plan.activations <= expected.activations <= 1.3 * plan.activations


@needs_native
@pytest.mark.parametrize("rank", [8, 256])
def test_the_engine_reserves_what_was_expected_for_adapters(rank: int, make_owner: Make, smollm2: ModelReport) -> None:
    limits = {"adapters": {"maxLoaded": 4, "maxRank": rank}, "kv": {"memory": "64Mi"}}
    expected = expect(make_owner({"engine": {"threads": 2, "maxModelLen": 512, **limits}}), "64Gi", smollm2)
    sizes = {"kv_memory": 64 << 20, "max_model_len": 512, "threads": 2, "backend": "cpu"}
    settings = EngineSettings("smollm2", max_loaded_adapters=4, max_adapter_rank=rank, **sizes)
    plan, without = load_engine(settings).memory, load_engine(EngineSettings("smollm2", **sizes)).memory
    assert plan is not None
    assert without is not None
    assert expected.kv == plan.kv_pool
    assert expected.adapters == plan.weights - without.weights


@needs_native
def test_the_engine_takes_what_was_expected_for_added_tokens(make_owner: Make, smollm2: ModelReport) -> None:
    limits = {"adapters": {"maxLoaded": 4, "maxRank": 8, "maxAddedTokens": 512}, "kv": {"memory": "64Mi"}}
    expected = expect(make_owner({"engine": {"threads": 2, "maxModelLen": 512, **limits}}), "64Gi", smollm2)
    sizes = {"kv_memory": 64 << 20, "max_model_len": 512, "threads": 2, "backend": "cpu", "max_added_tokens": 512}
    plan = load_engine(EngineSettings("smollm2", max_loaded_adapters=4, max_adapter_rank=8, **sizes)).memory
    assert plan is not None
    assert expected.kv == plan.kv_pool
    assert expected.weights + expected.adapters == pytest.approx(plan.weights, rel=0.02)
    assert plan.activations <= expected.activations <= 1.3 * plan.activations


@needs_native
def test_the_engine_keeps_no_more_adapters_than_was_expected(
    make_owner: Make, smollm2: ModelReport, tmp_path: Path
) -> None:
    """However many may be cached, and however large they are."""
    limits = {"adapters": {"maxLoaded": 2, "maxRank": 32}, "kv": {"memory": "64Mi"}}
    expected = expect(make_owner({"engine": {"threads": 2, "maxModelLen": 512, **limits}}), "64Gi", smollm2)
    sizes = {"kv_memory": 64 << 20, "max_model_len": 512, "threads": 2, "backend": "cpu"}
    engine = load_engine(EngineSettings("smollm2", max_loaded_adapters=2, max_adapter_rank=32, **sizes)).engine
    for number in range(6):
        engine.adapters.offer(str(number), str(save_dense(tmp_path / str(number), rank=32 if number in (0, 2) else 4)))
    states: dict[str, str] = {}
    while len(states) < 6 or "loading" in states.values():
        engine.wait()
        engine.step()
        states |= {each.key: each.state for each in engine.adapters.changes() or []}
    assert engine.limits.adapter_memory == expected.adapters
    prepared = [each.read.prepared for each in engine.adapters._offered.values() if each.read is not None]
    kept = [each.nbytes for each in prepared if each is not None]
    assert sum(kept) <= expected.adapters
    matrices = expected.adapters / 2 - 2 * smollm2.adapter_fixed  # in bfloat16
    assert max(kept) == pytest.approx(matrices, rel=0.05), "the largest without rows of tokens are as expected"
    assert 2 * max(kept) <= expected.adapters, "as many of the largest as may be loaded fit together"
    assert 2 < len(kept) < 6, "more than the device has, and not all"
    assert "failed" not in states.values()


def test_the_folder_of_a_pod_has_room_for_the_largest_adapters(
    make_owner: Make, smollm2: ModelReport, tmp_path: Path
) -> None:
    """Two lists of 64: all matrices of layers, embedding and head whole and changed, and a tokenizer."""
    owner = make_owner({"engine": {"adapters": {"maxLoaded": 2, "maxRank": 32}}})
    vocab, hidden = 49152, 576
    layers = (save_dense(tmp_path / "dense", 32) / "adapter_model.safetensors").stat().st_size
    outer = 4 * 2 * (vocab * hidden + 32 * (vocab + hidden))
    largest = layers + outer + sum(TEXT_FILES.values()) + OVERHEAD_BYTES
    assert disk_bytes(owner.spec, smollm2) >= 2 * 64 * largest


def test_a_pool_too_small_for_one_sequence_is_refused_as_the_engine_would(
    make_owner: Make, smollm2: ModelReport
) -> None:
    owner = make_owner({"engine": {"maxModelLen": 4096, "kv": {"memory": "64Mi"}}})
    message = refusal(owner.spec, expect(owner, "2Gi", smollm2))
    assert message.startswith("spec.engine.maxModelLen: the KV of one sequence of 4096 tokens takes 90Mi")
    assert "lower spec.engine.maxModelLen to 2912" in message
    with pytest.raises(SettingsError, match="does not fit kv_memory"):
        load_engine(EngineSettings("smollm2", threads=1, kv_memory=64 << 20, max_model_len=4096))


HYBRID = ModelReport(
    architecture="granitehybrid",
    weights={"auto": 1 << 30},
    kv_elements_per_token=4096,
    max_length=4096,
    token_bytes=1000,
    row_bytes=1000,
    state_bytes=9 << 20,
    gpu=GpuReport(
        head_dim=64,
        row_elements=512,
        position=256,
        shares=(
            GpuShare(
                ranks=1,
                weights={"auto": 1 << 30},
                kv_elements_per_token=4096,
                token=1000,
                token_elements=1000,
                widest=1000,
                row=1000,
                fixed=1000,
            ),
        ),
    ),
)


@pytest.mark.parametrize("running", [{}, {"maxRunningRequests": 8}])
@pytest.mark.parametrize("caching", [{}, {"prefixCaching": False}])
@pytest.mark.parametrize(
    "kv",
    [{}, {"memory": "1Gi"}, {"memory": "512Mi", "stateSnapshots": 5}, {"stateSnapshots": 0}, {"memoryPercent": 60}],
)
@pytest.mark.parametrize("gpu", [False, True])
def test_blocks_and_states_are_divided_as_in_the_engine(
    kv: Json, caching: Json, running: Json, make_owner: Make, *, gpu: bool
) -> None:
    owner = make_owner({"engine": {"kv": kv, "scheduler": running, **caching}})
    settings = owner.spec.engine.settings
    expected: Estimate | GpuEstimate | None
    if gpu:
        if settings.kv_memory_percent:
            return
        expected = estimate_of(settings, HYBRID, Card("a GPU", 24 << 30, 1))
        room, profiles = 0 if expected is None else expected.room, GPU_PROFILES
    else:
        expected = estimate(owner.spec, "8Gi", HYBRID)
        percent = settings.kv_memory_percent or KV_MEMORY_PERCENT
        room, profiles = ((8 << 30) - PROCESSES) * percent // 100, PROFILES
    assert expected is not None
    taken = fit(
        settings,
        profiles[settings.profile],
        max_positions=HYBRID.max_length,
        token_bytes=HYBRID.kv_elements_per_token * 2,
        state_bytes=HYBRID.state_bytes,
        block_size=16,
        room=lambda *_: room,
    )
    assert expected.kv == taken.kv_memory
    assert expected.states == taken.state_slots * taken.state_bytes
    assert expected.kv_tokens == taken.num_blocks * taken.block_size
    assert expected.length == taken.max_model_len


@needs_native
def test_the_engine_takes_what_was_expected_of_an_encoder(make_owner: Make, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="makes the model")
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "num_hidden_layers": 6}
    transformers.BertModel(transformers.BertConfig(vocab_size=2000, **sizes)).save_pretrained(tmp_path)
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    found = inspect(str(tmp_path))
    owner = make_owner({"engine": {"threads": 2, "dtype": "float32", "scheduler": {"maxRunningRequests": 16}}})
    expected = expect(owner, "2Gi", found)
    settings = EngineSettings(str(tmp_path), threads=2, backend="cpu", dtype="float32", max_running_requests=16)
    loaded = load_engine(settings)
    plan = loaded.memory
    assert plan is not None
    assert expected.kv == plan.kv_pool
    assert expected.length == loaded.settings.max_model_len == 512
    assert expected.weights == pytest.approx(plan.weights, rel=0.02)
    assert plan.activations <= expected.activations <= 1.4 * plan.activations
