"""Graphs of steps: which are captured and used, and that steps through them choose the same tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.tiers import scaled
from triton.runtime.errors import OutOfResources

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.buffers import StepLimits
from octavo_inference.backends.cuda.collectives import RankGroup
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.graphs import Graph, Graphs, graph_room, graph_sizes
from octavo_inference.backends.cuda.inputs import LaunchSize, size_of
from octavo_inference.backends.cuda.launch_list import LaunchList, record
from octavo_inference.backends.cuda.launch_sizes import prompt_sizes
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.common.errors import DeviceError, DeviceLostError
from octavo_inference.core.backend import Backend, StepHandle
from octavo_inference.core.model_input import RowChange, RowSamples, RowStep

from ..unit.engine.echo import Runner, make_runner, tiny_model  # noqa: TID252 -- tests are no package
from .test_engine import embedded, guided, with_rules

BLOCK, LONGEST = 8, 32
PROMPTS = [np.random.default_rng(i).integers(0, 60, size).tolist() for i, size in enumerate((3, 13, 9, 5))]


def cuda(blocks: int = 32, rows: int = 7, capture: Callable[..., Graph] | None = record) -> CudaBackend:
    backend = CudaBackend.create(
        *tiny_model(), device=find_device(), num_blocks=blocks, block_size=BLOCK, max_batched_tokens=64,
        max_running=rows, max_model_len=LONGEST, dtype=torch.float32, capture=capture,
    )  # fmt: skip
    if backend.graphs is not None:
        backend.graphs.start()
    return backend


def run(backend: Backend, **limits: Any) -> Runner:
    """Sequences that come and go: greedy and sampled, with penalties, bans, log-probabilities and two answers."""
    runner = make_runner(backend, max_model_len=LONGEST, caching=False, **({"budget": 40, "max_running": 7} | limits))
    runner.submit("greedy", PROMPTS[0], max_tokens=6, ignore_eos=True)
    runner.submit("sampled", PROMPTS[1], temperature=1.0, seed=2**64 - 1, top_p=0.9, max_tokens=4, ignore_eos=True)
    runner.submit("two", PROMPTS[2], temperature=1.0, top_k=9, seed=9, n=2, max_tokens=5, ignore_eos=True, logprobs=2)
    for _ in range(3):
        runner.step()
    runner.submit("late", PROMPTS[3], repetition_penalty=1.5, min_tokens=3, max_tokens=4, presence_penalty=0.3)
    runner.finish()
    return runner


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, int], list[int]]:
    return run(ReferenceBackend(*tiny_model(), num_blocks=32, block_size=BLOCK, max_model_len=LONGEST)).tokens


@pytest.mark.parametrize("blocks", [32, 4], ids=["room for all", "preemption"])
def test_the_engine_gives_the_tokens_of_the_reference(
    expected: dict[tuple[str, int], list[int]], blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = cuda(blocks)
    assert backend.graphs is not None
    decoding, launch = 0, backend.launch

    def counted(step: RowStep) -> StepHandle:
        nonlocal decoding
        decoding += size_of(step).kind == "decodes"
        return launch(step)

    monkeypatch.setattr(backend, "launch", counted)
    runner = run(backend)
    assert runner.tokens == expected
    assert (runner.engine.scheduler.preemptions > 0) == (blocks < 32)
    replays = {size.sequences: captured.replays for size, captured in backend.graphs.captured.items()}
    assert blocks < 32 or replays[4] > 0, "three sequences ran with one that was nobody's"
    assert sum(replays.values()) == decoding > 3, "steps with prompts have no graphs before idle moments"


def test_nothing_but_what_was_given_is_written() -> None:
    """Through a shape of four, for two: blocks and rows of others stay as they are."""
    backend = cuda(blocks=8, rows=4)
    before = backend.to_host(range(8))
    table = backend._rows.table
    rows = table.tokens.clone()
    step = two_tokens_each(queries=1)
    backend.launch(step).collect()
    assert backend.graphs is not None
    assert backend.graphs.captured[decodes(2)].replays == 1
    after = backend.to_host(range(8))
    assert [block for block in range(8) if (before[block] != after[block]).any()] == [3, 5]
    changed = (table.tokens != rows).nonzero().tolist()
    assert {row for row, _ in changed} <= {1, 2, 4}, "the last row is nobody's"


def decodes(count: int) -> LaunchSize:
    return LaunchSize(count, count, count, "decodes")


def two_tokens_each(queries: int) -> RowStep:
    """Two sequences of which `queries` tokens are read at once, all sampled."""
    changes = []
    for row, block in ((2, 5), (1, 3)):
        changes += [
            RowChange("tokens", row, 0, np.array([20 * row, 11 + row], np.int32)[:queries]),
            RowChange("blocks", row, 0, np.array([block], np.int32)),
            RowChange("sampling", row, 0, np.zeros(6, np.int32)),
        ]
    rows, count = np.array([2, 1], np.int32), 2 * queries
    at = np.tile(np.arange(queries, dtype=np.int32), 2)
    samples = RowSamples(
        query=np.arange(count, dtype=np.int32),
        row=np.repeat(rows, queries),
        position=at + 1,
        logprobs=np.full(count, -1, np.int32),
        penalties=[None] * count,
    )
    return RowStep(changes, rows, np.arange(3, dtype=np.int32) * queries, np.full(2, queries, np.int32), samples)


def idled(backend: CudaBackend) -> CudaBackend:
    while backend.idle():
        pass
    return backend


@pytest.mark.parametrize("blocks", [32, 4], ids=["room for all", "preemption"])
def test_after_idle_moments_every_step_is_a_graph(
    expected: dict[tuple[str, int], list[int]], blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = idled(cuda(blocks))
    monkeypatch.setattr(backend._lists, "run", lambda size: pytest.fail(f"{size} has no graph"))
    assert run(backend).tokens == expected
    assert backend.graphs is not None
    used = {size.kind for size, captured in backend.graphs.captured.items() if captured.replays}
    assert used == {"decodes", "prompts", "mixed"}


def random_load(backend: Backend, seed: int) -> Runner:
    """Requests of all lengths that arrive at random steps and are read in chunks; some with penalties or answers."""
    rng = np.random.default_rng(seed)
    budget = int(rng.integers(3, 60))
    runner = make_runner(backend, max_model_len=LONGEST, budget=budget, max_running=7, caching=False)
    for i in range(10):
        heat = float(rng.integers(0, 2))
        kinds: list[dict[str, Any]] = [{}, {"n": 2}, {"frequency_penalty": 0.7}, {"prompt_logprobs": 1}]
        kind = kinds[rng.integers(0, len(kinds))]
        prompt = rng.integers(0, 60, rng.integers(1, 24)).tolist()
        tokens = int(rng.integers(1, 8))
        runner.submit(str(i), prompt, temperature=heat, seed=i, max_tokens=tokens, ignore_eos=True, **kind)
        for _ in range(rng.integers(0, 3)):
            runner.step()
    runner.finish()
    return runner


def test_random_mixed_steps_give_the_tokens_of_the_reference() -> None:
    backend = idled(cuda())
    assert backend.graphs is not None
    for seed in range(scaled(2)):
        reference = ReferenceBackend(*tiny_model(), num_blocks=32, block_size=BLOCK, max_model_len=LONGEST)
        assert random_load(backend, seed).tokens == random_load(reference, seed).tokens
    mixed = [size for size, captured in backend.graphs.captured.items() if size.kind == "mixed" and captured.replays]
    assert len(mixed) >= 3


@pytest.mark.parametrize(
    "load", [partial(embedded, pooling="mean"), lambda b: with_rules(b)[0], guided], ids=["pooling", "rules", "masks"]
)
def test_what_graphs_do_not_hold_follows_them(load: Callable[[Backend], Runner]) -> None:
    """Pooling, rules, log-probabilities of prompts, and masks that are there only after the forward pass."""
    backend = idled(cuda(rows=8))
    expected = load(ReferenceBackend(*tiny_model(), num_blocks=32, block_size=BLOCK, max_model_len=LONGEST))
    found = load(backend)
    assert found.tokens == expected.tokens
    assert backend.graphs is not None
    assert any(captured.replays for size, captured in backend.graphs.captured.items() if size.kind != "decodes")


@pytest.mark.parametrize("kind", ["prompts", "mixed"])
def test_nothing_but_what_was_given_is_written_beside_padding(kind: str) -> None:
    """Two sequences of several tokens in a graph of 16 tokens and more sequences."""
    backend = idled(cuda(blocks=8, rows=4))
    before = backend.to_host(range(8))
    step = two_tokens_each(queries=2)
    if kind == "mixed":
        step = replace(step, query_start=np.array([0, 1, 3], np.int32), seq_len=np.array([1, 2], np.int32))
        step = replace(step, sample=replace(step.sample, query=np.array([0, 0, 1, 2], np.int32)))
    found = backend.launch(step).collect()
    assert backend.graphs is not None
    (used,) = (size for size, captured in backend.graphs.captured.items() if captured.replays)
    assert used == LaunchSize(4, 16, 4, kind)  # type: ignore[arg-type]  # one of two
    after = backend.to_host(range(8))
    assert [block for block in range(8) if (before[block] != after[block]).any()] == [3, 5]
    assert found.tokens.tolist() == cuda(rows=4, capture=None).launch(step).collect().tokens.tolist()


def test_a_mixed_graph_serves_prompts_until_they_have_their_own() -> None:
    """No decodes are in it, so attention of decodes has no parts and writes nothing."""
    backend = cuda(rows=4)
    graphs = backend.graphs
    assert graphs is not None
    mixed = LaunchSize(4, 16, 4, "mixed")
    used = []
    expected = cuda(rows=4, capture=None).launch(two_tokens_each(queries=2)).collect()
    for _ in range(2):
        while mixed not in graphs.captured:
            assert graphs.idle()
        found = backend.launch(two_tokens_each(queries=2)).collect()
        assert found.tokens.tolist() == expected.tokens.tolist()
        used.append({size.kind for size, captured in graphs.captured.items() if captured.replays})
        idled(backend)
    assert used == [{"mixed"}, {"mixed", "prompts"}]


def test_a_decoding_step_is_few_launches() -> None:
    """Tokens, embedding, first norm, sampled rows, head, five of the choice; nine a layer; for any number of rows."""
    backend = cuda(rows=7)
    assert backend.graphs is not None
    lists = [captured.graph for captured in backend.graphs.captured.values()]
    counts = {len(graph.launches) for graph in lists if isinstance(graph, LaunchList)}
    assert counts == {10 + 9 * tiny_model()[0].layers}


@dataclass(frozen=True)
class Fake:
    bytes: int = 0

    def replay(self) -> None:
        pass


def test_sizes_of_the_start_and_of_idle_moments() -> None:
    limits = StepLimits(tokens=2048, rows=100, positions=64, block_size=16, processors=1, vocab=1000)
    first, later = graph_sizes(limits)
    assert [size.sequences for size in first] == [100, 64, 32, 16, 8, 4, 2, 1]
    assert later[:8] == [decodes(n) for n in (96, 88, 80, 72, 56, 48, 40, 24)]
    assert later[8:] == prompt_sizes(limits)
    both = graph_sizes(replace(limits, adapters=2, adapter_rank=8))
    for plain, found in zip((first, later), both, strict=True):
        assert found == plain + [replace(size, adapted=True) for size in plain]
    few, more = graph_sizes(replace(limits, tokens=3))
    assert [size.sequences for size in few] == [3, 2, 1], "a step has no more tokens"
    assert {size.tokens for size in more} == {3}


def test_the_largest_is_captured_first_and_the_rest_one_by_one_in_idle_moments() -> None:
    order: list[LaunchSize] = []

    def capture(size: LaunchSize) -> Fake:
        order.append(size)
        return Fake()

    mixed = LaunchSize(8, 32, 8, "mixed")
    graphs = Graphs(capture, [decodes(1), decodes(16), decodes(8)], [decodes(12), decodes(4), mixed], room=1)
    graphs.start()
    assert order == [decodes(16), decodes(8), decodes(1)]
    assert graphs.choose(decodes(3)) == decodes(8)
    assert graphs.choose(replace(decodes(3), adapted=True)) is None, "those have graphs of their own"
    assert graphs.choose(mixed) is None
    assert [graphs.idle(), graphs.idle(), graphs.idle(), graphs.idle()] == [True, True, False, False]
    assert order[3:] == [decodes(12), decodes(4), mixed]
    assert graphs.choose(decodes(3)) == decodes(4)
    assert graphs.choose(decodes(16)) == decodes(16)
    assert graphs.choose(decodes(17)) is None
    assert graphs.choose(mixed) == mixed
    assert graphs.choose(replace(mixed, tokens=24)) is None, "a larger graph would compute more"
    assert graphs.choose(replace(mixed, kind="prompts")) == mixed
    assert graphs.choose(replace(mixed, tokens=24, kind="prompts")) is None


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nmore about it"), "CUDA out of memory."),
        (torch.AcceleratorError("CUDA error: operation not permitted"), "CUDA error: operation not permitted"),
        (OutOfResources(2, 1, "shared memory"), "out of resource: shared memory, Required: 2, Hardware limit: 1"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
    ids=["memory", "driver", "kernel", "compiler"],
)
def test_a_capture_that_fails_leaves_a_server_that_serves(
    caplog: pytest.LogCaptureFixture, expected: dict[tuple[str, int], list[int]], error: Exception, line: str
) -> None:
    def failing(work: Callable[[], object]) -> Graph:
        raise error

    with caplog.at_level(logging.WARNING):
        backend = cuda(capture=failing)
    (message,) = caplog.messages
    first = f"no CUDA graph of 7 sequences and 7 tokens ({line}"
    assert message[: len(first)] == first
    assert message.endswith("): 0 sizes have one; other steps launch each kernel")
    assert not backend.idle()
    runner = make_runner(backend, max_model_len=LONGEST)
    runner.submit("greedy", PROMPTS[0], max_tokens=2, ignore_eos=True)
    assert runner.finish()["greedy", 0] == expected["greedy", 0][:2]


def test_no_more_is_captured_than_there_is_room_for(caplog: pytest.LogCaptureFixture) -> None:
    graphs = Graphs(lambda _: Fake(30 << 20), [decodes(4), decodes(2), decodes(1)], [decodes(3)], room=50 << 20)
    graphs.start()
    assert set(graphs.captured) == {decodes(4), decodes(2)}
    assert "no CUDA graph of 1 sequences and 1 tokens (the others have 60 of 50 MiB left for them)" in caplog.text
    assert not graphs.idle()
    assert set(graphs.captured) == {decodes(4), decodes(2)}


def test_ranks_capture_while_all_of_them_have_room(caplog: pytest.LogCaptureFixture) -> None:
    votes: list[bool] = []

    def agreed(ok: bool) -> bool:
        votes.append(ok)
        return ok and len(votes) < 2

    graphs = Graphs(lambda _: Fake(), [decodes(4), decodes(2), decodes(1)], [decodes(3)], room=1, agreed=agreed)
    graphs.start()
    assert set(graphs.captured) == {decodes(4)}
    assert votes == [True, True]
    assert "no CUDA graph of 2 sequences and 2 tokens (" in caplog.text
    assert not graphs.idle()


def test_a_capture_that_loses_the_device_is_the_end_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def illegal(*_: object) -> Graph:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore about it")

    backend = cuda(rows=2)
    assert backend.graphs is not None
    backend.graphs.later.append(decodes(1))
    monkeypatch.setattr(backend.graphs, "record", illegal)
    monkeypatch.setattr(backend, "_synchronize", illegal)
    with pytest.raises(
        DeviceLostError, match="the GPU failed and cannot recover: CUDA error: an illegal memory access"
    ):
        backend.idle()


def test_a_capture_that_one_of_several_gpus_fails_ends_them_all() -> None:
    backend = cuda(rows=2, capture=None)
    object.__setattr__(backend._decoder.context, "group", RankGroup(0, 2))
    with pytest.raises(DeviceError, match=r"could not be captured \(out of memory\), .* start with --no-cuda-graphs"):
        backend._capture_failed(RuntimeError("out of memory\nmore"))


def test_room_goes_by_the_number_of_sizes() -> None:
    small, large = (StepLimits(2048, rows, 64, 16, 1, 1000) for rows in (8, 256))
    more = sum(map(len, graph_sizes(large))) - sum(map(len, graph_sizes(small)))
    assert more > 35 - 4
    assert graph_room(large) - graph_room(small) == more * 4 * 2**20


def test_without_capture_there_are_no_graphs() -> None:
    backend = cuda(capture=None)
    assert backend.graphs is None
    assert not backend.idle()


def test_the_recording_is_strict() -> None:
    kept, source = torch.zeros(3), torch.ones(3)
    number = 2.0
    recorded = record(lambda: torch.mul(source[:2], number, out=kept[1:]))
    assert kept.tolist() == [0, 0, 0], "nothing ran"
    source += 1
    number = 100.0
    recorded.replay()
    assert kept.tolist() == [0, 4, 4], "what the host said then, what memory holds now"
    with pytest.raises(RuntimeError, match=r"aten.add.Tensor makes a tensor"):
        record(lambda: source + 1)
    with pytest.raises(RuntimeError, match="makes a tensor or reads one"):
        record(source[0].item)
