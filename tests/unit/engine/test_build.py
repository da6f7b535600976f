"""Sizes: settled from wishes and memory, refused with the numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.native import needs_native
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from octavo_inference.common.errors import ModelError, SettingsError
from octavo_inference.common.memory_plan import available_memory
from octavo_inference.config.engine import PROFILES, EngineSettings
from octavo_inference.core.kv_cache_sizing import fit
from octavo_inference.engine import factory
from octavo_inference.engine.draft import require_vocabulary

from .echo import CONFIG

BLOCK_BYTES = 2 * 2 * 2 * 8 * 2 * 32  # K and V, layers, heads, dim, bytes, tokens
GIB = 2**30


def sizes(room: int = GIB, *, whole: bool = False, **wishes: Any) -> Any:
    settings = EngineSettings(**wishes)
    return fit(
        settings,
        PROFILES[settings.profile],
        max_positions=CONFIG.max_positions,
        token_bytes=CONFIG.kv_bytes_per_token(2),
        block_size=32,
        room=lambda *_: room,
        whole=whole,
    )


def test_defaults_take_what_is_useful_and_no_more() -> None:
    got = sizes()
    assert (got.max_model_len, got.block_size, got.max_running, got.max_batched_tokens) == (256, 32, 64, 512)
    assert got.num_blocks == 64 * 256 // 32


def test_little_memory_makes_the_pool_and_the_longest_sequence_smaller() -> None:
    got = sizes(room=5 * BLOCK_BYTES + 100)
    assert got.num_blocks == 5
    assert got.max_model_len == 160
    assert got.kv_memory == 5 * BLOCK_BYTES


@pytest.mark.parametrize(
    ("wishes", "field", "message"),
    [
        ({"max_model_len": 300}, "max_model_len", "300 is more than the 256 positions"),
        ({"kv_memory": 100}, "kv_memory", "holds 0 blocks of 4096 bytes"),
        (
            {"max_model_len": 200, "kv_memory": 4 * BLOCK_BYTES},
            "max_model_len",
            "16384 bytes hold 128 tokens; 28672 bytes are needed",
        ),
        ({"max_batched_tokens": 32}, "max_batched_tokens", "32 is less than max_running_requests 64"),
        ({"swap_memory": 2**20}, "swap_memory", "needs preemption swap"),
        ({"preemption": "swap", "swap_memory": 100}, "swap_memory", "100 bytes holds no block of 4096 bytes"),
        (
            {"max_batched_tokens": 128, "chunked_prefill": False},
            "max_batched_tokens",
            "128 is less than max_model_len 256",
        ),
    ],
)
def test_contradictions_are_refused_with_the_numbers(wishes: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        sizes(**wishes)
    assert refused.value.field == field


def test_without_chunks_a_step_is_made_large_enough_for_any_prompt() -> None:
    assert sizes(chunked_prefill=False, max_running_requests=4).max_batched_tokens == 512


def encoder(room: int = 1 << 40, **wishes: Any) -> Any:
    return sizes(room, whole=True, **wishes)


def test_an_encoder_has_blocks_for_the_tokens_of_a_step() -> None:
    got = encoder(max_running_requests=8, max_batched_tokens=2048, preemption="swap")
    assert (got.max_model_len, got.max_batched_tokens) == (CONFIG.max_positions, 2048)
    assert got.num_blocks == 2048 // 32 + 2 * 8
    assert got.host_blocks == 0, "its sequences are not preempted"


def test_a_step_of_an_encoder_holds_a_prompt() -> None:
    assert encoder(max_running_requests=4).max_batched_tokens >= CONFIG.max_positions
    with pytest.raises(SettingsError, match="an encoder computes a prompt in one step: raise max_batched_tokens"):
        encoder(max_running_requests=4, max_batched_tokens=CONFIG.max_positions - 1)


STATE = 1000 * BLOCK_BYTES


def with_states(room: int, **wishes: Any) -> Any:
    settings = EngineSettings(**wishes)
    return fit(
        settings,
        PROFILES[settings.profile],
        max_positions=CONFIG.max_positions,
        token_bytes=CONFIG.kv_bytes_per_token(2),
        state_bytes=STATE,
        block_size=32,
        room=lambda *_: room,
    )


def test_states_of_running_sequences_take_at_most_half_of_the_pool() -> None:
    got = with_states(room=20 * STATE)
    assert got.max_running == 10
    assert got.state_slots == 10 + 2, "a quarter of the other half are snapshots"
    assert got.num_blocks == 8000
    assert got.kv_memory == 12 * STATE + 8000 * BLOCK_BYTES


def test_as_many_states_as_are_wished_leave_the_rest_for_blocks() -> None:
    got = with_states(room=0, kv_memory=20 * STATE, max_running_requests=16, state_snapshots=3)
    assert (got.max_running, got.state_slots, got.num_blocks) == (16, 19, 1000)
    assert with_states(room=20 * STATE, prefix_caching=False).state_slots == 10


def test_a_state_counts_as_its_blocks_in_the_memory_for_preempted_sequences() -> None:
    got = with_states(room=0, kv_memory=20 * STATE, preemption="swap")
    assert got.host_state_blocks == 1000
    assert got.host_blocks == 5000


def test_without_attention_layers_blocks_only_count_tokens() -> None:
    settings = EngineSettings(max_running_requests=4, state_snapshots=2)
    got = fit(
        settings,
        PROFILES["balanced"],
        max_positions=256,
        token_bytes=0,
        state_bytes=STATE,
        block_size=32,
        room=lambda *_: 10 * STATE,
    )
    assert (got.num_blocks, got.state_slots, got.kv_memory, got.host_blocks) == (4 * 8, 6, 6 * STATE, 0)


@pytest.mark.parametrize(
    ("wishes", "field", "message"),
    [
        ({"max_running_requests": 20}, "max_running_requests", "the states of 20 running sequences, 4096000 each, and"),
        ({"state_snapshots": 11}, "state_snapshots", "hold 19 states of 4096000 bytes, 10 of running sequences"),
        (
            {"max_running_requests": 19, "state_snapshots": 0, "max_model_len": 256, "kv_memory": 19 * STATE + 20_000},
            "max_model_len",
            "hold 128 tokens and 19 states of 4096000 bytes; 77856768 bytes are needed",
        ),
    ],
)
def test_states_that_do_not_fit_are_refused_with_the_numbers(wishes: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        with_states(**{"room": 0, "kv_memory": 20 * STATE} | wishes)
    assert refused.value.field == field


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:       9000 kB\nMemAvailable:   8000 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": MEMINFO}, 8000 * 1024),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/kubepods/pod1\n",
                "sys/fs/cgroup/memory.max": "1000000\n",
                "sys/fs/cgroup/memory.current": "400000\n",
                "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 100000\n",
            },
            700000,
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "4:cpu,memory:/docker/x\n1:name=systemd:/\n",
                "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "500000\n",
                "sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes": "100000\n",
            },
            400000,
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "max\n",
                "sys/fs/cgroup/memory.current": "400000\n",
            },
            8000 * 1024,
        ),
    ],
    ids=["no group", "version 2", "version 1", "no limit"],
)
def test_available_memory_is_the_smaller_of_machine_and_group(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    assert available_memory(write(tmp_path, files)) == expected


@needs_native
def test_a_model_larger_than_memory_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "available_memory", lambda: 50 << 20)
    monkeypatch.setattr(factory, "_create_cpu", None)  # would fail if it were reached
    with pytest.raises(ModelError, match=r"its weights take 0\.\d\d GiB of memory, 0\.05 GiB are available"):
        factory.load_engine(EngineSettings(backend="cpu"))


@pytest.mark.parametrize(("percent", "blocks"), [(None, 25), (50, 50), (90, 90)])
def test_the_pool_takes_its_percent_of_the_free_memory(percent: int | None, blocks: int) -> None:
    settings = EngineSettings(kv_memory_percent=percent)
    assert factory._fit(settings, CONFIG, CONFIG.kv_bytes_per_token(2), 32, free=100 * BLOCK_BYTES).num_blocks == blocks


def test_a_percent_beside_a_size_is_refused() -> None:
    settings = EngineSettings(kv_memory_percent=50, kv_memory=2**20)
    with pytest.raises(SettingsError, match="percent 50 and kv_memory 1048576 both size the KV pool"):
        factory._fit(settings, CONFIG, CONFIG.kv_bytes_per_token(2), 32, free=2**30)


@pytest.mark.parametrize(
    ("wishes", "rows", "tokens"),
    [
        ({"profile": "latency"}, 16, 256),
        ({"profile": "throughput"}, 256, 1024),
        ({"profile": "latency", "max_running_requests": 300}, 300, 300),
        ({"profile": "throughput", "max_batched_tokens": 512}, 256, 512),
    ],
)
def test_a_profile_sets_what_is_not_given(wishes: dict[str, Any], rows: int, tokens: int) -> None:
    got = sizes(**wishes)
    assert (got.max_running, got.max_batched_tokens) == (rows, tokens)


@pytest.mark.parametrize(
    ("wishes", "blocks"), [({}, 0), ({"preemption": "swap"}, 128), ({"preemption": "swap", "swap_memory": 8200}, 2)]
)
def test_the_host_keeps_blocks_only_with_swap(wishes: dict[str, Any], blocks: int) -> None:
    assert sizes(**wishes).host_blocks == blocks


@needs_native
@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"quantization": "fp8"}, r"fp8 needs a GPU.*set int8"),
        ({"quantization": "int8"}, r"int8 has no effect: the checkpoint is already quantised"),
        (
            {"quantization": "int8", "backend": "reference"},
            r"quantization int8 needs the CPU kernels.*leave it at auto",
        ),
    ],
)
def test_a_quantization_without_use_is_refused(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        factory.load_engine(EngineSettings(model="smollm2", **wishes))
    assert refused.value.field == "quantization"


@needs_native
@pytest.mark.parametrize(
    ("wishes", "field", "message"),
    [
        ({"speculation": "draft"}, "speculation_model", "set speculation_model"),
        ({"speculation_model": "smollm2"}, "speculation_model", "is for speculation draft"),
        ({"speculation": "ngram", "speculation_model": "smollm2"}, "speculation_model", "is for speculation draft"),
        ({"speculation_recent_tokens": 9}, "speculation_recent_tokens", "is for speculation ngram"),
        (
            {"speculation": "draft", "speculation_model": "smollm2", "speculation_recent_tokens": 9},
            "speculation_recent_tokens",
            "is for speculation ngram",
        ),
    ],
)
def test_speculation_without_use_is_refused(wishes: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        factory.load_engine(EngineSettings(model="smollm2", **wishes))
    assert refused.value.field == field


@needs_native
def test_a_draft_model_has_the_blocks_of_the_pool_and_counts_in_the_plan() -> None:
    sizes = {"max_model_len": 256, "kv_memory": 64 << 20}
    alone = factory.load_engine(EngineSettings(**sizes))
    both = factory.load_engine(EngineSettings(**sizes, speculation="draft", speculation_model="smollm2"))
    assert alone.memory is not None
    assert both.memory is not None
    assert both.engine.backend.num_blocks == alone.engine.backend.num_blocks // 2
    assert both.memory.kv_pool <= 64 << 20
    assert both.memory.weights == 2 * alone.memory.weights


def text_model(name: str, tokens: list[str]) -> Any:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return SimpleNamespace(name=name, tokenizer=Tokenizer(WordLevel(vocabulary, unk_token=tokens[0])))


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (["a", "b", "c"], ""),
        (["a", "b", "c", "d", "pad"], ""),  # padded at the end
        (["a", "c", "b"], r"different: 'c' and 1 more\); choose a model of the same family"),
        (["a", "b", *map(str, range(2000))], r"small has another vocabulary than the model \(2002 tokens, 4 there"),
    ],
)
def test_a_draft_model_has_the_vocabulary_of_the_model(theirs: list[str], message: str) -> None:
    large, small = text_model("large", ["a", "b", "c", "d"]), text_model("small", theirs)
    if not message:
        require_vocabulary("small", large, small)
        return
    with pytest.raises(SettingsError, match=message) as refused:
        require_vocabulary("small", large, small)
    assert refused.value.field == "speculation_model"
