"""Adapters of several ranks: all prepare their part, load it at the same step, and forget it together."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.waiting import eventually

from octavo_common.failpoints import Failpoints
from octavo_inference.common.errors import DeviceLostError, ModelError, RankLostError
from octavo_inference.common.process import EXIT_RANK_LOST
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.distributed import adapter_transfer
from octavo_inference.distributed.adapter_sender import AdapterLink, AdapterSender
from octavo_inference.distributed.adapter_transfer import (
    AdapterAnswer,
    receive_adapter,
    receive_answer,
    send_adapter,
    send_answer,
)
from octavo_inference.distributed.messages import Call, RankFailed, Reader, decode_from_rank, encode
from octavo_inference.distributed.rank_adapters import RankAdapters
from octavo_inference.distributed.tp_backend import TensorParallel
from octavo_inference.distributed.worker import Inbox, follow
from octavo_inference.models.adapter import Adapter, LowRank, TokenRows

from .echo import CONFIG, Prepared, Runner, Ticks
from .late import LateBackend

RANKS = 3


def values(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def adapter(digest: str = "7") -> Adapter:
    """Of matrices with 12 rows and 6 columns, cut in both ways."""
    layer = {
        "q": LowRank(values(2, 6), values(12, 2), values(12)),
        "o": LowRank(values(2, 6), values(12, 2), values(12)),
        "down": LowRank(values(0, 0), values(12, 0), values(12)),
    }
    return Adapter(digest, (layer, {}), embedding=LowRank(values(1, 5), values(4, 1)))


class Rank(LateBackend):
    """Remembers what it prepared; refuses digest 13, and fails at 14."""

    def __init__(self) -> None:
        super().__init__(24, adapter_slots=2)
        self.prepared: list[Adapter] = []

    def prepare_adapter(self, adapter: Adapter) -> Prepared:
        self.prepared.append(adapter)
        if adapter.digest == "13":
            raise ModelError("an odd rank")
        if adapter.digest == "15":
            raise DeviceLostError("the GPU is lost")
        if adapter.digest == "14":
            raise MemoryError("no room\nat all")
        return super().prepare_adapter(adapter)


@dataclass
class Group:
    """`RankExecutor` of ranks that are threads of this process."""

    own: LateBackend
    others: list[Rank]
    held: list[RankAdapters]
    calls: list[socket.socket]
    links: list[AdapterLink]
    threads: list[threading.Thread]
    ended: list[Exception] = field(default_factory=list)
    """Errors with which a rank's process would have ended."""
    size: int = RANKS

    def send_all(self, call: Call) -> None:
        for connection in self.calls:
            connection.sendall(encode(call))

    def in_step(self) -> nullcontext[None]:
        return nullcontext()

    def whole(self) -> TensorParallel:
        return TensorParallel(self.own, self, AdapterSender(CONFIG, self.links))  # type: ignore[arg-type]

    def end(self) -> None:
        """Let the other ranks run what was sent, and end."""
        for connection in (*self.calls, *(link.connection for link in self.links)):
            connection.close()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()

    def numbers(self) -> list[list[int]]:
        """The adapters that each rank above 0 holds."""
        return [sorted(each._prepared) for each in self.held]


@pytest.fixture
def group() -> Iterator[Group]:
    found, theirs = Group(LateBackend(24, adapter_slots=2), [], [], [], [], []), []
    for rank in range(1, RANKS):
        (calls, their_calls), (adapters, their_adapters) = socket.socketpair(), socket.socketpair()
        other = Rank()
        held = RankAdapters(other, their_adapters, Failpoints(""), found.ended.append)
        held.start()

        def be_the_other(
            other: Rank = other, their_calls: socket.socket = their_calls, held: RankAdapters = held
        ) -> None:
            with suppress(EOFError):
                follow(other, Inbox(their_calls), Failpoints(""), held)

        found.threads.append(threading.Thread(target=be_the_other))
        found.threads[-1].start()
        found.others.append(other)
        found.held.append(held)
        found.calls.append(calls)
        found.links.append(AdapterLink(f"rank {rank}", adapters))
        theirs += [their_calls, their_adapters]
    yield found
    found.end()
    for connection in theirs:
        connection.close()


def same(found: Adapter, wanted: Adapter) -> None:
    assert found.digest == wanted.digest
    for (name, part), (wanted_name, whole) in zip(found.parts(), wanted.parts(), strict=True):
        assert name == wanted_name
        for array, other in ((part.down, whole.down), (part.up, whole.up), (part.bias, whole.bias)):
            assert (array is None) == (other is None), name
            if array is not None and other is not None:
                np.testing.assert_array_equal(array, other)
                assert (array.shape, array.dtype) == (other.shape, np.float32)


def test_an_adapter_arrives_as_it_was() -> None:
    """More of it than a socket holds, and a part of it that is not contiguous."""
    ours, theirs = socket.socketpair()
    long = values(300, 1000)
    sent = Adapter("d", ({}, {"k": LowRank(long[:, 1:500], values(3, 300))}), lm_head=LowRank(long, values(2, 300)))
    rows = TokenRows(np.array([3, 900], np.int32), values(2, 5), values(2))
    whole = Adapter("w", ({},), embedding_rows=replace(rows, bias=None), lm_head_rows=rows)
    with ours, theirs:
        for number, one in ((3, adapter()), (4, sent), (5, whole)):
            thread = threading.Thread(target=send_adapter, args=(ours, number, one))
            thread.start()
            found, arrived = receive_adapter(theirs)
            thread.join(60)
            assert found == number
            same(arrived, one)
            for before, after in (
                (one.embedding_rows, arrived.embedding_rows),
                (one.lm_head_rows, arrived.lm_head_rows),
            ):
                assert (before is None) == (after is None)
                if before is not None and after is not None:
                    assert after.ids.tolist() == before.ids.tolist()
                    np.testing.assert_array_equal(after.rows, before.rows)
                    assert (after.bias is None) == (before.bias is None)
        send_answer(theirs, AdapterAnswer(4, "no"))
        assert receive_answer(ours) == AdapterAnswer(4, "no")
        theirs.close()
        with pytest.raises(EOFError):
            receive_answer(ours)


def test_each_rank_prepares_its_part(group: Group) -> None:
    group.whole().prepare_adapter(adapter())
    for rank, other in enumerate(group.others, 1):
        (found,) = other.prepared
        (layer, _), whole = found.layers, adapter().layers[0]
        np.testing.assert_array_equal(layer["q"].up, whole["q"].up[4 * rank : 4 * rank + 4])
        np.testing.assert_array_equal(layer["o"].down, whole["o"].down[:, 2 * rank : 2 * rank + 2])
        assert layer["o"].bias is None, "rank 0 adds it"


@pytest.mark.parametrize(
    ("digest", "failure"),
    [("13", "rank 1 could not prepare it: an odd rank"), ("14", "rank 1 could not prepare it: MemoryError: no room")],
)
def test_what_one_rank_cannot_prepare_fails_for_all_and_the_next_one_works(
    group: Group, digest: str, failure: str
) -> None:
    whole = group.whole()
    with pytest.raises(ModelError, match=failure):
        whole.prepare_adapter(adapter(digest))
    whole.load_adapter(1, whole.prepare_adapter(adapter("7")))
    eventually(lambda: [other.adapters for other in group.others] == [[None, 7]] * 2)


def test_what_rank_0_cannot_prepare_is_forgotten_by_the_others(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Adapter) -> int:
        raise ModelError("not here")

    whole = group.whole()
    with monkeypatch.context() as patched:
        patched.setattr(group.own, "prepare_adapter", refuse)
        with pytest.raises(ModelError, match="not here"):
            whole.prepare_adapter(adapter("8"))
    assert group.numbers() == [[0], [0]]
    kept = whole.prepare_adapter(adapter("9"))
    assert kept.nbytes == RANKS * Prepared(9).nbytes, "the host has the parts of all ranks"
    whole.load_adapter(0, kept)
    eventually(lambda: group.numbers() == [[1], [1]])
    assert group.own.adapters == [9, None]


def test_ranks_forget_what_rank_0_has_no_use_for(group: Group) -> None:
    whole = group.whole()
    first, second = (whole.prepare_adapter(adapter(digest)) for digest in ("1", "2"))
    whole.load_adapter(0, first)
    del first
    gc.collect()
    whole.load_adapter(1, second)
    eventually(lambda: group.numbers() == [[1], [1]])
    eventually(lambda: [other.adapters for other in group.others] == [[1, 2]] * 2)
    whole.load_adapter(0, None)
    eventually(lambda: [other.adapters for other in group.others] == [[None, 2]] * 2)
    del second
    gc.collect()
    whole.idle()
    eventually(lambda: group.numbers() == [[], []])


def test_a_rank_that_ends_meanwhile_is_named(group: Group) -> None:
    sender = AdapterSender(CONFIG, group.links)
    group.links[1].connection.shutdown(socket.SHUT_RDWR)
    with pytest.raises(RankLostError, match=r"rank 2 ended while it (received|prepared) an adapter"):
        sender.prepare(0, adapter(), lambda part: part)


def test_a_rank_ends_with_its_device(group: Group) -> None:
    with pytest.raises(RankLostError, match="rank 1 ended while it prepared an adapter"):
        group.whole().prepare_adapter(adapter("15"))
    eventually(lambda: [str(error) for error in group.ended] == ["the GPU is lost"] * 2)


@pytest.mark.parametrize("error", [MemoryError(), ValueError("no message")])
def test_a_rank_that_cannot_receive_ends(group: Group, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    whole = group.whole()
    monkeypatch.setattr(adapter_transfer, "_receive_layer", fail)
    with pytest.raises(RankLostError, match=r"rank \d ended while it (received|prepared) an adapter"):
        whole.prepare_adapter(adapter())
    eventually(lambda: error in group.ended)


def test_a_part_of_an_adapter_puts_the_ranks_out_of_step(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> memoryview:
        raise MemoryError

    sender = AdapterSender(CONFIG, group.links)
    monkeypatch.setattr(adapter_transfer, "_arrays", fail)
    with pytest.raises(RankLostError, match="rank 1 was sent a part of an adapter"):
        sender.prepare(0, adapter(), lambda part: part)


def test_an_answer_for_another_adapter_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_answer(theirs, AdapterAnswer(3))
        with pytest.raises(RankLostError, match="rank 1 answered for adapter 3 instead of 4"):
            AdapterLink("rank 1", ours).failure(4)


def test_a_process_ends_from_any_thread_with_the_status_of_a_lost_rank() -> None:
    """What `worker` gives to `RankAdapters`."""
    ours, theirs = socket.socketpair()
    program = (
        "import socket, sys, threading\n"
        "from functools import partial\n"
        "from octavo_inference.distributed.messages import encode\n"
        "from octavo_inference.distributed.worker import _end\n"
        "connection = socket.socket(fileno=int(sys.argv[1]))\n"
        "end = partial(_end, lambda message: connection.sendall(encode(message)))\n"
        "threading.Thread(target=end, args=(MemoryError('no room'),)).start()\n"
        "threading.Event().wait(60)\n"
    )
    with ours, theirs:
        done = subprocess.run(
            [sys.executable, "-c", program, str(theirs.fileno())], pass_fds=[theirs.fileno()], check=False
        )
        frames = Reader(ours).read()
    assert done.returncode == EXIT_RANK_LOST
    assert [decode_from_rank(frame) for frame in frames] == [RankFailed("MemoryError: no room", EXIT_RANK_LOST)]


def test_slots_change_at_the_same_step_on_all_ranks(group: Group) -> None:
    """Requests for five adapters in two slots, while steps run and adapters come and go: all ranks have the same KV."""

    def read(folder: Path) -> Adapter:
        return adapter(folder.name)

    limits = EngineLimits(64, 4, 9, 100, max_cached_adapters=2)
    engine = Engine(group.whole(), CONFIG, limits, clock=Ticks(1.0), read_adapter=read)
    runner = Runner(engine, Ticks(1.0))

    def ask(name: str, key: str) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, seed=1)
        engine.submit(Request(id=name, tokens=[1, 2, 3, 4, 5, 6], sampling=sampling, adapter=key))

    for key in ("1", "2", "3", "4"):
        engine.adapters.offer(key, f"/adapters/{key}")
    for turn in range(3):
        for key in ("1", "", "2", "3", "4"):
            ask(f"{turn} {key}", key)
        for _ in range(4):
            runner.step()
    engine.adapters.withdraw("2")
    engine.adapters.offer("5", "/adapters/5")
    ask("0 5", "5")
    runner.finish()
    alone = Engine(LateBackend(24, adapter_slots=5), CONFIG, limits, clock=Ticks(1.0), read_adapter=read)
    for key in ("1", "2", "3", "4", "5", ""):
        if key:
            alone.adapters.offer(key, f"/adapters/{key}")
        sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, seed=1)
        alone.submit(Request(id=key, tokens=[1, 2, 3, 4, 5, 6], sampling=sampling, adapter=key))
        wanted = Runner(alone, Ticks(1.0)).finish()[key, 0]
        assert {tuple(runner.tokens[request]) for request in runner.tokens if request[0].split(" ")[1] == key} == {
            tuple(wanted)
        }
    assert len(runner.final) == 16
    engine.backend.load_adapter(0, None)  # forgets what was not needed any more
    group.end()
    for each in (group.own, *group.others):
        each.synchronize()
        assert each.adapters == group.own.adapters
        assert np.array_equal(each.kv, group.own.kv)
    # Two in host memory at most, and one that was offered since.
    assert all(len(numbers) <= 3 for numbers in group.numbers())
    engine.adapters.close()
    alone.adapters.close()
