"""Checks of grammars: the queue and the cache, with a process that is played; and the real process."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from tests.unit.grammar.conftest import byte_tokenizer
from tokenizers import Tokenizer, models

from octavo_inference.common.memory_plan import resident_memory
from octavo_inference.server.errors import ApiError
from octavo_inference.server.grammars.checks import CACHE_BYTES, MAX_WAITING, MAX_WAITING_OF_TENANT, GrammarChecks
from octavo_inference.server.grammars.messages import ModelTokens, Tried
from octavo_inference.server.grammars.process import GrammarProcess, GrammarProcessEndedError

TOO_MUCH = r"longer than 2 s|more than 512 MiB|longer than 0\.5 s|too complex|more than \d+ steps"
BEGIN = ModelTokens(tokenizer="", size=257, ends=(256,))


class PlayedProcess:
    """Ends by what a grammar says: an error for "bad", an end of the process for "bomb", another for "strange"."""

    resident = 1
    is_alive = True

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.starts = 0
        self.ends = 0

    async def start(self, begin: ModelTokens) -> PlayedProcess:
        self.starts += 1
        return self

    async def trial(self, grammar: str) -> Tried:
        await self.gate.wait()
        self.tried.append(grammar)
        if grammar.startswith("bomb"):
            raise GrammarProcessEndedError("time", "took too long")
        if grammar.startswith("lost"):
            raise GrammarProcessEndedError("failed", "it ended")
        if grammar == "strange":
            raise ValueError(grammar)
        return Tried(seconds=0.01, error="it is bad" if grammar.startswith("bad") else None)

    async def end(self) -> None:
        self.ends += 1


def checks(process: PlayedProcess, **options) -> GrammarChecks:
    return GrammarChecks(lambda: BEGIN, process.start, **options)


async def test_results_are_kept_by_content_and_tenant():
    process = PlayedProcess()
    checked = checks(process)
    for _ in range(3):
        await checked.check("good", "a", "field")
        with pytest.raises(ApiError, match=r"^field: it is bad\.$") as found:
            await checked.check("bad", "a", "field")
    assert (found.value.status, found.value.param, found.value.code) == (400, "field", "invalid_grammar")
    await checked.check("good", "b", "field")
    assert process.tried == ["good", "bad", "good"]
    assert (checked.metrics.cache_hits, checked.metrics.refused["invalid"]) == (4, 1)
    assert checked.metrics.compile_seconds.cumulative()[0][-1] == ("+Inf", 3.0)
    await checked.close()


async def test_one_grammar_asked_for_at_once_is_tried_once():
    process = PlayedProcess()
    checked = checks(process)
    await asyncio.gather(*(checked.check("good", "a", "field") for _ in range(50)))
    assert process.tried == ["good"]
    await checked.close()


async def test_a_bomb_costs_its_request_only_and_is_not_tried_again():
    process = PlayedProcess()
    checked = checks(process)
    results = await asyncio.gather(
        *(checked.check(grammar, "a", "field") for grammar in ("one", "bomb", "two")), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), ApiError, type(None)]
    with pytest.raises(ApiError, match="field: took too long"):
        await checked.check("bomb", "a", "field")
    assert (process.starts, process.ends, checked.metrics.restarts, checked.metrics.refused["time"]) == (2, 1, 1, 1)
    await checked.close()


async def test_a_process_that_ends_for_another_reason_is_no_fault_of_the_grammar():
    process = PlayedProcess()
    checked = checks(process)
    with pytest.raises(ApiError, match="could not be compiled now; try again later") as found:
        await checked.check("lost", "a", "field")
    assert (found.value.status, found.value.headers["Retry-After"]) == (503, "2")
    with pytest.raises(ApiError):
        await checked.check("lost", "a", "field")
    assert process.tried == ["lost", "lost"]
    await checked.close()


async def test_an_unexpected_error_ends_the_wait_of_its_request_only():
    process = PlayedProcess()
    checked = checks(process)
    results = await asyncio.gather(
        *(checked.check(grammar, "a", "field") for grammar in ("one", "strange", "two")), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), ApiError, type(None)]
    assert process.ends == 1
    await checked.close()


async def test_tenants_take_turns():
    process = PlayedProcess()
    process.gate.clear()
    checked = checks(process)
    jobs = [asyncio.create_task(checked.check(f"a{n}", "a", "field")) for n in range(4)]
    await asyncio.sleep(0)
    jobs += [asyncio.create_task(checked.check(f"b{n}", "b", "field")) for n in range(2)]
    await asyncio.sleep(0)
    process.gate.set()
    await asyncio.gather(*jobs)
    assert process.tried in (["a0", "a1", "b0", "a2", "b1", "a3"], ["a0", "b0", "a1", "b1", "a2", "a3"])
    await checked.close()


async def test_the_queue_is_bounded_for_all_and_for_each_tenant():
    process = PlayedProcess()
    process.gate.clear()
    checked = checks(process)

    async def refused(tenant: str, count: int) -> list[object]:
        jobs = [asyncio.create_task(checked.check(f"{n}", tenant, "field")) for n in range(count)]
        await asyncio.sleep(0.01)
        return [job.exception() for job in jobs if job.done()]

    first = await refused("a", MAX_WAITING_OF_TENANT + 3)
    assert [error.status for error in first] == [503] * 3
    others = [await refused(f"t{n}", MAX_WAITING_OF_TENANT) for n in range(4)]
    assert sum(map(len, others)) == MAX_WAITING_OF_TENANT - 1  # one is being tried
    assert checked.waiting == MAX_WAITING
    assert checked.metrics.refused["queue_full"] == 2 + MAX_WAITING_OF_TENANT
    await checked.close()


async def test_a_request_that_goes_leaves_the_others_their_result():
    process = PlayedProcess()
    process.gate.clear()
    checked = checks(process)
    jobs = [asyncio.create_task(checked.check("good", "a", "field")) for _ in range(2)]
    await asyncio.sleep(0.01)
    jobs[0].cancel()
    process.gate.set()
    await jobs[1]
    assert process.tried == ["good"]
    await checked.close()


async def test_the_process_is_there_before_the_first_grammar_and_behind_each_bomb():
    process = PlayedProcess()
    checked = checks(process)
    checked.prepare()
    checked.prepare()
    await until_rest(checked)
    assert process.starts == 1
    for _ in range(2):
        with pytest.raises(ApiError):
            await checked.check("bomb", "a", "field")
        await until_rest(checked)
    assert (process.starts, process.ends) == (2, 1)
    await checked.check("good", "a", "field")
    assert process.starts == 2
    await checked.close()
    checked = checks(PlayedProcess())
    checked.prepare()
    await checked.close()


async def test_a_grammar_that_comes_while_the_process_starts_is_tried_by_it():
    process = PlayedProcess()
    checked = checks(process)
    checked.prepare()
    await asyncio.gather(checked.check("good", "a", "field"), checked.check("fine", "a", "field"))
    assert (process.starts, process.tried) == (1, ["good", "fine"])
    await checked.close()


async def test_a_process_that_cannot_start_is_started_for_the_next_grammar():
    process = PlayedProcess()
    causes = [OSError("no memory"), OSError("no memory")]

    async def start(begin: ModelTokens) -> PlayedProcess:
        if causes:
            raise causes.pop()
        return await process.start(begin)

    checked = GrammarChecks(lambda: BEGIN, start)
    checked.prepare()
    await until_rest(checked)
    assert len(causes) == 1
    await checked.check("good", "a", "field")
    assert process.tried == ["good"]
    await checked.close()


async def test_after_a_while_a_fresh_process_takes_the_place_of_a_used_one():
    process = PlayedProcess()
    checked = checks(process, idle_seconds=0.0)
    checked.prepare()
    await until_rest(checked)
    await asyncio.sleep(0.01)
    assert (process.starts, process.ends) == (1, 0), "an unused one stays"
    await checked.check("good", "a", "field")
    await asyncio.sleep(0.01)
    await until_rest(checked)
    assert (process.starts, process.ends) == (2, 1)
    await checked.close()


async def until_rest(checked: GrammarChecks) -> None:
    if checked._running is not None:
        await checked._running


async def test_the_cache_is_bounded():
    process = PlayedProcess()
    checked = checks(process)
    for n in range(CACHE_BYTES // 400 + 100):
        await checked.check(f"g{n}", "a", "field")
    tried = len(process.tried)
    await checked.check("g0", "a", "field")
    assert len(process.tried) == tried + 1
    await checked.close()


@pytest.fixture
async def real():
    checked = GrammarChecks(lambda: ModelTokens(tokenizer=byte_tokenizer().to_str(), size=257, ends=(256,)))
    yield checked
    await checked.close()


async def test_the_real_process_tries_grammars(real):
    await real.check("start: /a+/", "", "field")
    for grammar, message in {
        "start: (": r"field: line 1, column 9: ",
        'start: %json {"type": "object", "uniqueItems": true}': "keywords of the schema that are not supported",
        'start: %json {"oneOf": [{"type": "integer"}, {"type": "number"}]}': "the alternatives of oneOf may overlap",
        'start: start "a"': "the grammar accepts no text at all",
        "start: /(?=a)b/": "look-around",
        "start: \ufffe\ud7ff": "field: ",
    }.items():
        with pytest.raises(ApiError, match=message) as found:
            await real.check(grammar, "", "field")
        assert "llguidance" not in found.value.message
        assert "%json" not in found.value.message
    assert real.metrics.restarts == 0
    assert real.resident > 10 * 2**20


async def test_grammars_that_cost_too_much_end_the_process_and_the_next_one_works(real):
    with pytest.raises(ApiError, match=TOO_MUCH) as found:
        await real.check("start: /(?:(?:(?:(?:x{100}){100}){100}){100})/", "", "field")
    assert found.value.status == 400
    await real.check("start: /a+/", "", "field")


async def test_a_bomb_behind_a_long_text_is_found(real):
    for text in ('"a"{60}', '"a"{60} %json {"type": "object", "properties": {"a": {}}, "required": ["a"]}'):
        with pytest.raises(ApiError, match=TOO_MUCH):
            await real.check(f"start: {text} /(?:(?:(?:(?:x{{100}}){{100}}){{100}}){{100}})/", "", "field")


async def test_a_killed_process_is_replaced_and_a_closed_one_is_gone(real):
    await real.check("start: /a+/", "", "field")
    pid = real._process._child.pid
    os.kill(pid, signal.SIGTERM)  # without effect
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(real._process._child.wait)
    await real.check("start: /b+/", "", "field")
    pid = real._process._child.pid
    await real.close()
    assert resident_memory(pid) == 0


async def test_a_model_whose_tokens_grammars_cannot_use_refuses_them_and_its_process_stays():
    unknown = Tokenizer(models.BPE({f"t{token}": token for token in range(9)}, []))
    checked = GrammarChecks(lambda: ModelTokens(tokenizer=unknown.to_str(), size=9, ends=(8,)))
    try:
        for grammar in ("start: /a/", "start: /b/"):
            with pytest.raises(ApiError, match="its tokenizer is not supported") as refused:
                await checked.check(grammar, "t", "response_format")
            assert (refused.value.status, refused.value.param) == (400, "response_format")
        assert checked.metrics.restarts == 0
    finally:
        await checked.close()


async def test_the_process_ends_with_its_parents_end_of_the_socket():
    process = await GrammarProcess.start(ModelTokens(tokenizer=byte_tokenizer().to_str(), size=257, ends=(256,)))
    await process.trial("start: /a/")
    process._writer.close()
    await process._writer.wait_closed()
    await asyncio.to_thread(process._child.wait, 60)
