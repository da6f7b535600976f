"""Graphs of decoding steps: which are captured and used, and that steps through them choose the same tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.buffers import StepLimits
from octavo_inference.backends.cuda.collectives import RankGroup
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.graphs import Captured, Graph, Graphs, GraphShape, graph_room, shapes
from octavo_inference.backends.reference import ReferenceBackend
from octavo_inference.common.errors import DeviceError, DeviceLostError
from octavo_inference.core.backend import Backend, StepHandle
from octavo_inference.core.model_input import RowChange, RowSamples, RowStep

from ..unit.engine.echo import Runner, make_runner, tiny_model  # noqa: TID252 -- tests are no package
from .recording import record

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
    single, launch = 0, backend.launch

    def counted(step: RowStep) -> StepHandle:
        nonlocal single
        single += bool((np.diff(step.query_start) == 1).all())
        return launch(step)

    monkeypatch.setattr(backend, "launch", counted)
    runner = run(backend)
    assert runner.tokens == expected
    assert (runner.engine.scheduler.preemptions > 0) == (blocks < 32)
    replays = {shape.sequences: captured.replays for shape, captured in backend.graphs.captured.items()}
    assert blocks < 32 or replays[4] > 0, "three sequences ran with one that was nobody's"
    assert sum(replays.values()) == single > 3, "only steps that read several tokens are launched kernel by kernel"


def test_nothing_but_what_was_given_is_written() -> None:
    """Through a shape of four, for two: blocks and rows of others stay as they are."""
    backend = cuda(blocks=8, rows=4)
    before = backend.to_host(range(8))
    table = backend._rows.table
    rows = table.tokens.clone()
    step = two_tokens_each(queries=1)
    backend.launch(step).collect()
    assert backend.graphs is not None
    assert backend.graphs.captured[GraphShape(2)].replays == 1
    after = backend.to_host(range(8))
    assert [block for block in range(8) if (before[block] != after[block]).any()] == [3, 5]
    changed = (table.tokens != rows).nonzero().tolist()
    assert {row for row, _ in changed} <= {1, 2, 4}, "the last row is nobody's"


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


def test_sequences_of_several_query_tokens_have_shapes_of_their_own() -> None:
    backend, eager = cuda(rows=7), cuda(rows=7, capture=None)
    assert backend.graphs is not None
    wide = GraphShape(3, queries=2)
    backend.graphs.captured[wide] = Captured(backend.graphs.record(wide), 0.0)
    found, wanted = (one.launch(two_tokens_each(queries=2)).collect() for one in (backend, eager))
    assert backend.graphs.captured[wide].replays == 1
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert len(set(found.tokens.tolist())) > 1
    uneven = two_tokens_each(queries=2)
    assert backend.graphs.choose(2, 4, 4, uniform=False) is None
    assert backend.graphs.choose(4, 8, 8, uniform=True) is None, "more sequences than it holds"
    assert uneven.query_start.tolist() == [0, 2, 4]


def test_a_decoding_step_is_few_launches() -> None:
    """Tokens, embedding, first norm, sampled rows, head, five of the choice; nine a layer; for any number of rows."""
    backend = cuda(rows=7)
    assert backend.graphs is not None
    counts = {len(captured.graph.launches) for captured in backend.graphs.captured.values()}
    assert counts == {10 + 9 * tiny_model()[0].layers}


@dataclass(frozen=True)
class Fake:
    bytes: int = 0

    def replay(self) -> None:
        pass


def test_sizes_of_the_start_and_of_idle_moments() -> None:
    first, later = shapes(StepLimits(tokens=2048, rows=100, positions=64, block_size=16, processors=1, vocab=1000))
    assert [shape.sequences for shape in first] == [100, 64, 32, 16, 8, 4, 2, 1]
    assert [shape.sequences for shape in later] == [96, 88, 80, 72, 56, 48, 40, 24]
    few, none = shapes(StepLimits(tokens=3, rows=100, positions=64, block_size=16, processors=1, vocab=1000))
    assert [shape.sequences for shape in few] == [3, 2, 1], "a step has no more tokens"
    assert none == []


def test_the_largest_is_captured_first_and_the_rest_one_by_one_in_idle_moments() -> None:
    order: list[int] = []

    def capture(shape: GraphShape) -> Fake:
        order.append(shape.sequences)
        return Fake()

    graphs = Graphs(capture, [GraphShape(1), GraphShape(16), GraphShape(8)], [GraphShape(12), GraphShape(4)], room=1)
    graphs.start()
    assert order == [16, 8, 1]
    chosen = graphs.choose(3, 3, 3, uniform=True)
    assert chosen == GraphShape(8)
    assert [graphs.idle(), graphs.idle(), graphs.idle()] == [True, False, False]
    assert order == [16, 8, 1, 12, 4]
    assert graphs.choose(3, 3, 3, uniform=True) == GraphShape(4)
    assert graphs.choose(16, 16, 16, uniform=True) == GraphShape(16)
    assert graphs.choose(17, 17, 17, uniform=True) is None
    assert graphs.choose(1, 1, 2, uniform=True) is None, "two answers of one prompt are chosen at once"


def test_a_capture_that_fails_leaves_a_server_that_serves(
    caplog: pytest.LogCaptureFixture, expected: dict[tuple[str, int], list[int]]
) -> None:
    def out_of_memory(work: Callable[[], object]) -> Graph:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB\nmore about it")

    with caplog.at_level(logging.WARNING):
        backend = cuda(capture=out_of_memory)
    (message,) = caplog.messages
    assert message == (
        "no CUDA graph of 7 sequences (CUDA out of memory. Tried to allocate 2.00 MiB): 0 shapes have one; other steps "
        "launch each kernel"
    )
    assert not backend.idle()
    runner = make_runner(backend, max_model_len=LONGEST)
    runner.submit("greedy", PROMPTS[0], max_tokens=2, ignore_eos=True)
    assert runner.finish()["greedy", 0] == expected["greedy", 0][:2]


def test_no_more_is_captured_than_there_is_room_for(caplog: pytest.LogCaptureFixture) -> None:
    graphs = Graphs(
        lambda _: Fake(30 << 20), [GraphShape(4), GraphShape(2), GraphShape(1)], [GraphShape(3)], room=50 << 20
    )
    graphs.start()
    assert set(graphs.captured) == {GraphShape(4), GraphShape(2)}
    assert "no CUDA graph of 1 sequences (the others have 60 of 50 MiB left for them)" in caplog.text
    assert not graphs.idle()
    assert set(graphs.captured) == {GraphShape(4), GraphShape(2)}


def test_ranks_capture_while_all_of_them_have_room(caplog: pytest.LogCaptureFixture) -> None:
    votes: list[bool] = []

    def agreed(ok: bool) -> bool:
        votes.append(ok)
        return ok and len(votes) < 2

    graphs = Graphs(
        lambda _: Fake(), [GraphShape(4), GraphShape(2), GraphShape(1)], [GraphShape(3)], room=1, agreed=agreed
    )
    graphs.start()
    assert set(graphs.captured) == {GraphShape(4)}
    assert votes == [True, True]
    assert "no CUDA graph of 2 sequences (" in caplog.text
    assert not graphs.idle()


def test_a_capture_that_loses_the_device_is_the_end_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def illegal(*_: object) -> Graph:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore about it")

    backend = cuda(rows=2)
    assert backend.graphs is not None
    backend.graphs.later.append(GraphShape(1))
    monkeypatch.setattr(backend.graphs, "record", illegal)
    monkeypatch.setattr(backend, "_synchronize", illegal)
    with pytest.raises(
        DeviceLostError, match="the GPU failed and cannot recover: CUDA error: an illegal memory access"
    ):
        backend.idle()


def test_a_capture_that_one_of_several_gpus_fails_ends_them_all() -> None:
    backend = cuda(rows=2, capture=None)
    object.__setattr__(backend._decoder, "group", RankGroup(0, 2))
    with pytest.raises(DeviceError, match=r"could not be captured \(out of memory\), .* start with --no-cuda-graphs"):
        backend._capture_failed(RuntimeError("out of memory\nmore"))


def test_room_goes_by_the_number_of_shapes() -> None:
    small, large = (StepLimits(2048, rows, 64, 16, 1, 1000) for rows in (8, 256))
    assert graph_room(large) - graph_room(small) == (35 - 4) * 4 * 2**20


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
