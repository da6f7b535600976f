"""Calls between ranks: what is sent arrives as it was, and a rank that follows does what the first one does."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import numpy as np
import pytest

from octavo_common.failpoints import Failpoints, InjectedFaultError
from octavo_inference.common.errors import DeviceLostError, RankLostError, SettingsError
from octavo_inference.core.model_input import Penalty, RowChange, RowPooling, RowSamples, RowStep, RowTable
from octavo_inference.distributed.adapter_sender import AdapterSender
from octavo_inference.distributed.executor import RankExecutor
from octavo_inference.distributed.messages import Call, ClearBlocks, Launch, RankFailed, decode_to_rank, encode
from octavo_inference.distributed.rank_adapters import RankAdapters
from octavo_inference.distributed.tp_backend import TensorParallel
from octavo_inference.distributed.worker import Inbox, follow

from .echo import CONFIG, make_runner
from .late import LateBackend

# What ends a process ends a thread here.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


NO_ADAPTERS = AdapterSender(CONFIG, [])


def adapters_of(backend: LateBackend) -> RankAdapters:
    """Those of a rank that is sent none."""
    return RankAdapters(backend, socket.socket(), Failpoints(""), lambda _: None)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_a_step_arrives_as_it_was() -> None:
    samples = RowSamples(ids(1), ids(4), ids(9), ids(-1), [Penalty(2, 9, 0.5, 0.25, 1.5, ids(7, 8))])
    pooling = RowPooling(ids(3), ids(0), ids(2), ids(1), ids(0))
    step = RowStep([RowChange("blocks", 4, 1, ids(5, 6))], ids(4), ids(0, 2), ids(9), samples, pooling=pooling)
    found = decode_to_rank(encode(Launch(step=step))[4:])
    assert isinstance(found, Launch)
    np.testing.assert_equal(asdict(found.step), asdict(step))
    # torch takes arrays that can be written, and no other.
    assert found.step.row.flags.writeable


def test_the_row_table_of_the_engine_is_not_sent() -> None:
    ours, theirs = socket.socketpair()
    nothing = RowSamples(ids(), ids(), ids(), ids(), [])
    step = RowStep([], ids(0), ids(0, 1), ids(1), nothing, RowTable.zeros(256, 40_960, 16, 151_936))
    with ours, theirs:
        TensorParallel(LateBackend(4), Told(ours), NO_ADAPTERS).launch(step)  # type: ignore[arg-type]
        frame = theirs.recv(1 << 20)
    assert len(frame) < 300
    found = decode_to_rank(frame[4:])
    assert isinstance(found, Launch)
    np.testing.assert_equal(asdict(found.step), asdict(replace(step, table=None)))


class Told:
    """`RankExecutor` of one other, in a thread of this process."""

    size = 2

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send_all(self, call: Call) -> None:
        self._connection.sendall(encode(call))

    def in_step(self) -> nullcontext[None]:
        return nullcontext()


def test_a_rank_that_follows_does_what_the_first_does() -> None:
    """A pool that is small enough for preemption, siblings that share blocks, prefixes found again."""
    ours, theirs = socket.socketpair()
    first, other = LateBackend(12), LateBackend(12)

    def be_the_other() -> None:
        with suppress(EOFError):
            follow(other, Inbox(theirs), Failpoints(""), adapters_of(other))

    thread = threading.Thread(target=be_the_other)
    thread.start()
    whole = TensorParallel(first, Told(ours), NO_ADAPTERS)  # type: ignore[arg-type]
    runner = make_runner(whole, blocks=12, budget=7)
    for i in range(4):
        runner.submit(str(i), [i, 2, 3, 4, 5, 6, 7], n=1 + i % 2, max_tokens=9, temperature=1.0)
    runner.finish()
    runner.submit("again", [3, 2, 3, 4, 5, 6, 7], max_tokens=2)
    runner.finish()
    runner.engine.backend.clear_blocks([0])
    ours.close()
    thread.join(60)
    assert not thread.is_alive()
    assert runner.engine.scheduler.preemptions > 0
    assert runner.engine.scheduler.hit_tokens > 0
    assert first.most_in_flight == 2
    assert other.copies == first.copies > 0
    other.synchronize()
    assert np.array_equal(other.kv, first.kv)


def test_what_a_call_raises_ends_a_rank() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for block in (1, 2, 3):
            ours.sendall(encode(ClearBlocks(blocks=[block])))
        backend = LateBackend(4)
        backend.kv[:] = 7
        with pytest.raises(InjectedFaultError):
            follow(backend, Inbox(theirs), Failpoints("rank.call:raise@3"), adapters_of(backend))
    assert backend.kv[:, 0].tolist() == [7, 0, 0, 7]


def test_swap_is_refused_with_the_reason() -> None:
    spread = TensorParallel(LateBackend(4), Told(socket.socket()), NO_ADAPTERS)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="cannot move to RAM and back with tensor_parallel_size above 1"):
        spread.to_host([1])


Ended = SimpleQueue[tuple[str, int]]
DIES = "connection.recv(1)\nos.kill(os.getpid(), 9)"
REFUSES = f"connection.sendall({encode(RankFailed(message='no room', status=1))!r})\nconnection.recv(1)"
WAITS = "connection.recv(1)"


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], tuple[RankExecutor, Ended]]:
    """Ranks with a program that stands for rank 1, and what they ended this process with."""

    def begin(program: str) -> tuple[RankExecutor, Ended]:
        folder, ended = tmp_path / "octavo_inference" / "distributed", Ended()
        folder.mkdir(parents=True)
        for package in (folder.parent, folder):
            (package / "__init__.py").touch()
        head = "import os, socket, sys\nconnection = socket.socket(fileno=int(sys.argv[1]))\n"
        (folder / "worker.py").write_text(head + program)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

        def end(message: str, status: int) -> NoReturn:
            ended.put((message, status))
            sys.exit()  # of the thread alone

        return RankExecutor(2, end), ended

    return begin


def test_a_killed_rank_ends_the_process_with_its_name(start: Callable[[str], tuple[RankExecutor, Ended]]) -> None:
    ranks, ended = start(DIES)
    assert ranks.folder.stat().st_mode & 0o777 == 0o700
    ranks.send_all(ClearBlocks(blocks=[]))
    (pid,) = ranks.pids
    assert ended.get(timeout=60) == (f"tensor-parallel rank 1 (pid {pid}) was killed by signal 9", 73)
    assert not ranks.folder.exists()
    with pytest.raises(RankLostError, match=r"rank 1 .* was killed by signal 9"):
        ranks.send_all(ClearBlocks(blocks=[]))
    with (
        pytest.raises(RankLostError, match=rf"rank 0 \(pid {os.getpid()}\) failed in a step .*: no number"),
        ranks.in_step(),
    ):
        raise ValueError("no number")
    with pytest.raises(DeviceLostError, match="fell off the bus"), ranks.in_step():
        raise DeviceLostError("fell off the bus")
    ranks.close()


def test_what_a_rank_refuses_is_told_with_its_name(start: Callable[[str], tuple[RankExecutor, Ended]]) -> None:
    ranks, ended = start(REFUSES)
    assert ended.get(timeout=60) == (f"tensor-parallel rank 1 (pid {ranks.pids[0]}): no room", 1)
    ranks.close()


def test_ranks_that_are_closed_end_nobody_else(start: Callable[[str], tuple[RankExecutor, Ended]]) -> None:
    ranks, ended = start(WAITS)
    ranks.close()
    assert ended.empty()
    assert not ranks.folder.exists()
    assert not Path(f"/proc/{ranks.pids[0]}").exists()
