"""What readers of a pod's cache are told, step by step. The property is with the pool's, in `test_blocks`."""

from __future__ import annotations

import pytest

from octavo_inference.core.block_pool import BlockPool
from octavo_inference.engine.kv_events import KvEventLog
from octavo_inference.engine.loop import EngineLoop
from octavo_protocol.hashing import keys
from octavo_protocol.load import CacheDelta

from .echo import make_runner

A, B, C = (bytes([i] * 8) for i in range(1, 4))


def test_who_asks_again_is_told_the_difference_only():
    log = KvEventLog(100)
    log.apply(A + B, b"")
    first = log.since(100)
    log.apply(C, A)
    then = log.since(first.sequence)
    assert (first.reset, set(keys(first.added)), first.removed) == (False, {A, B}, b"")
    assert then == CacheDelta(sequence=104, added=C, removed=A)
    assert log.since(104) == CacheDelta(sequence=104)


@pytest.mark.parametrize("sequence", [0, 99, 103, 2**60])
def test_who_knows_nothing_or_another_process_is_told_everything(sequence):
    log = KvEventLog(100)
    log.apply(A + B, b"")
    delta = log.since(sequence)
    assert (delta.sequence, delta.reset, set(keys(delta.added)), delta.removed) == (102, True, {A, B}, b"")


def test_who_comes_back_too_late_is_told_everything():
    log = KvEventLog(100, limit=2)
    log.apply(A, b"")
    log.apply(B + C, A)
    delta = log.since(101)
    assert (delta.reset, set(keys(delta.added))) == (True, {B, C})
    assert not log.since(102).reset


def test_what_came_and_went_is_told_as_gone_and_what_went_and_came_as_there():
    log = KvEventLog(100)
    log.apply(A, b"")
    log.apply(B, A)
    log.apply(A, B)
    assert log.since(100) == CacheDelta(sequence=105, added=A, removed=B)


def test_a_pool_that_nobody_asks_remembers_nothing():
    pool = BlockPool(4)
    [block] = pool.allocate(1) or []
    pool.register(block, b"a" * 16, b"root")
    assert pool._changed is None
    assert pool.changes() == ([b"a" * 16], []), "the first to ask is told all"
    assert pool.changes() == ([], [])


def test_the_engine_tells_of_full_blocks_and_of_a_reset():
    run = make_runner(blocks=8)
    loop = EngineLoop(run.engine)
    loop.run_once([])
    run.submit("a", range(1, 11), max_tokens=1)
    told = [loop.run_once([]) for _ in range(3)]
    known = b"".join(step.known for step in told)
    assert [len(step.forgotten) for step in told] == [0, 0, 0]
    assert len(keys(known)) == 2, "ten tokens fill two blocks of four"
    run.engine.reset_cache()
    assert set(keys(loop.run_once([]).forgotten)) == set(keys(known))
