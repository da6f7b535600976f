"""Requests with adapters: each reads its own prefixes, waits for a slot, and none waits forever."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.adapters import save_adapter

from octavo_inference.checkpoints.peft import read_adapter
from octavo_inference.checkpoints.peft_rows import OuterMatrices
from octavo_inference.common.errors import ModelError, RankLostError, RequestError
from octavo_inference.core.adapter_slots import AdapterSlots
from octavo_inference.core.adapters import ReadAdapter
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.request import ADAPTER_UNUSABLE, NO_ADAPTER, REFUSED, Output, Request, SamplingParams
from octavo_inference.engine.loop import EngineLoop
from octavo_inference.models.adapter import Adapter, LowRank, TokenRows
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Tensor

from .echo import CONFIG, VOCAB, EchoBackend

RANK = 3


class Reader:
    """Reads adapters whose folder is a number; 13 fails. Reads wait while `gate` is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.read: list[str] = []
        self.gone: set[str] = set()
        self.lost: set[str] = set()

    def __call__(self, folder: Path) -> Adapter:
        self.gate.wait(10)
        self.read.append(folder.name)
        if folder.name in self.lost:
            raise RankLostError("rank 1 ended while it prepared an adapter")
        if folder.name in self.gone:
            raise ModelError("adapter_config.json cannot be read: Input/output error")
        if folder.name == "13":
            raise ModelError("its rank is odd")
        none = np.zeros((RANK, 1), np.float32)
        return Adapter(digest=folder.name, layers=({"q": LowRank(none, none.T)},))


class Server:
    def __init__(
        self,
        slots: int = 2,
        max_cached: int = 32,
        rows: int = 4,
        memory: int | None = None,
        read: ReadAdapter | None = None,
        config: ModelConfig = CONFIG,
    ) -> None:
        self.reader = Reader()
        self.backend = EchoBackend(64, adapter_slots=slots)
        limits = EngineLimits(64, rows, 16, 100, max_cached_adapters=max_cached, adapter_memory=memory)
        self.time = 0.0
        self.engine = Engine(self.backend, config, limits, clock=lambda: self.time, read_adapter=read or self.reader)
        self.states: dict[str, str] = {}

    def offer(self, *keys: int) -> None:
        for key in keys:
            self.engine.adapters.offer(str(key), f"/adapters/{key}")
        self.settle()

    def settle(self) -> None:
        """Steps until all that was offered is read."""
        self.note()
        while "loading" in self.states.values():
            self.engine.wait()
            self.engine.step()
            self.note()

    def note(self) -> None:
        for each in self.engine.adapters.changes() or []:
            self.states[each.key] = each.state

    def submit(self, name: str, adapter: str = "", tokens: int = 4, prompt: list[int] | None = None) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, seed=1)
        self.engine.submit(Request(id=name, tokens=prompt or [1, 2, 3, 4, 5, 6], sampling=sampling, adapter=adapter))

    def run(self) -> dict[str, list[Output]]:
        found: dict[str, list[Output]] = {}
        steps = 0
        while self.engine.has_work:
            self.engine.wait()
            for output in self.engine.step():
                found.setdefault(output.id, []).append(output)
            steps += 1
            assert steps < 5000, "the engine does not come to an end"
        self.note()
        return found


@pytest.fixture
def server() -> Server:
    return Server()


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def test_answers_and_prefixes_are_those_of_the_adapter(server: Server) -> None:
    server.offer(1, 2)
    assert server.states == {"1": "loaded", "2": "loaded"}
    alone = {}
    for name, adapter in (("base", ""), ("one", "1"), ("two", "2")):
        server.submit(name, adapter)
        alone[adapter] = tokens(server.run()[name])
    assert len({tuple(answer) for answer in alone.values()}) == 3
    for name, adapter in (("a", "2"), ("b", "1"), ("c", ""), ("d", "1")):
        server.submit(name, adapter)
    found = server.run()
    assert {name: tokens(found[name]) for name in "abcd"} == {
        "a": alone["2"], "b": alone["1"], "c": alone[""], "d": alone["1"],
    }  # fmt: skip
    assert all(found[name][0].cached_tokens == 4 for name in "abcd")


def test_decodes_with_one_adapter_are_next_to_each_other(server: Server) -> None:
    """So that kernels read it once for several rows."""
    server.offer(1, 2)
    for name, adapter in (("a", "2"), ("b", "1"), ("c", ""), ("d", "2")):
        server.submit(name, adapter)
    server.run()
    [decodes] = {tuple(batch.adapter) for batch in server.backend.batches if len(batch.tokens) == 4}
    assert [decodes.count(slot) for slot in sorted(set(decodes))] == [1, 1, 2]
    assert list(decodes) == sorted(decodes)


def test_an_adapter_has_no_prefix_of_another_one(server: Server) -> None:
    server.offer(1, 2)
    server.submit("first", "1")
    server.run()
    server.submit("other", "2")
    server.submit("base")
    found = server.run()
    assert found["other"][0].cached_tokens == found["base"][0].cached_tokens == 0


def test_an_unknown_adapter_is_refused(server: Server) -> None:
    with pytest.raises(RequestError, match=ADAPTER_UNUSABLE) as error:
        server.submit("a", "7")
    assert error.value.field == "model"


def test_one_that_cannot_be_read_says_why_and_the_others_go_on(server: Server) -> None:
    server.offer(1)
    server.reader.gate.clear()
    server.engine.adapters.offer("13", "/adapters/13")
    server.submit("waits", "13")
    server.submit("runs", "1")
    server.reader.gate.set()
    found = server.run()
    assert (found["waits"][-1].error, found["waits"][-1].stop_reason) == (ADAPTER_UNUSABLE, NO_ADAPTER)
    assert found["runs"][-1].finish_reason == "length"
    assert server.states["13"] == "failed"
    with pytest.raises(RequestError, match=ADAPTER_UNUSABLE):
        server.submit("later", "13")


def test_a_request_waits_while_its_adapter_is_read_and_others_run_meanwhile(server: Server) -> None:
    server.offer(1)
    server.reader.gate.clear()
    server.engine.adapters.offer("2", "/adapters/2")
    server.submit("waits", "2")
    server.submit("runs", "1", tokens=20)
    outputs = [output for _ in range(10) for output in server.engine.step()]
    assert {output.id for output in outputs} == {"runs"}
    assert server.engine.stats().waiting == 1
    server.reader.gate.set()
    assert tokens(server.run()["waits"])


def test_more_adapters_than_slots_take_turns(server: Server) -> None:
    server.offer(*range(1, 6))
    assert sorted(server.states.values()) == ["cached"] * 3 + ["loaded"] * 2
    for number in range(20):
        server.submit(f"r{number}", str(1 + number % 5))
    found = server.run()
    assert len(found) == 20
    assert all(outputs[-1].finish_reason == "length" for outputs in found.values())


def test_a_waiting_adapter_gets_a_slot_although_requests_for_others_keep_coming(server: Server) -> None:
    server.offer(1, 2, 3)
    for number in range(4):
        server.submit(f"busy{number}", str(1 + number % 2), tokens=20)
    server.submit("waits", "3")
    begun = None
    for step in range(200):
        if step % 2 == 0:
            server.submit(f"more{step}", str(1 + step // 2 % 2), tokens=20)
        if any(output.id == "waits" for output in server.engine.step()):
            begun = step
            break
    assert begun is not None, "it waited forever"


def test_those_not_used_for_longest_leave_host_memory_and_are_read_again() -> None:
    server = Server(slots=1, max_cached=2)
    server.offer(1, 2, 3)
    assert sorted(server.states.values()) == ["cached", "loaded", "stored"]
    stored = next(key for key, state in server.states.items() if state == "stored")
    before = list(server.reader.read)
    server.submit("a", stored)
    assert tokens(server.run()["a"])
    assert server.reader.read == [*before, stored]
    assert server.states[stored] == "loaded"


def test_files_that_cannot_be_read_now_are_read_for_a_later_request() -> None:
    server = Server(slots=1, max_cached=1)
    server.offer(1, 2)
    stored = next(key for key, state in server.states.items() if state == "stored")
    server.reader.gone = {stored}
    server.submit("now", stored)
    assert server.run()["now"][-1].stop_reason == NO_ADAPTER
    assert server.states[stored] == "stored"
    server.reader.gone = set()
    server.submit("later", stored)
    assert tokens(server.run()["later"])


@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_failure_that_no_request_waited_for_denies_none(withdrawn: bool) -> None:
    server = Server(slots=1, max_cached=1)
    server.offer(1, 2)
    stored = next(key for key, state in server.states.items() if state == "stored")
    server.reader.gone = {stored}
    server.reader.gate.clear()
    server.submit("left", stored)
    server.engine.step()
    server.engine.abort("left")
    if withdrawn:
        server.engine.adapters.withdraw(stored)
    server.reader.gate.set()
    server.engine.adapters.wait()
    server.engine.step()
    server.reader.gone = set()
    if withdrawn:
        server.engine.adapters.offer(stored, f"/adapters/{stored}")
    server.submit("later", stored)
    assert tokens(server.run()["later"])


OUTER = OuterMatrices(*(Tensor("f32", (VOCAB, CONFIG.hidden), np.zeros((VOCAB, CONFIG.hidden), np.float32)),) * 2)


def save_small(folder: Path) -> Path:
    """An adapter of `CONFIG` as PEFT saves it."""
    module = "model.layers.0.self_attn.q_proj"
    tensors = {
        f"{module}.lora_A.weight": np.ones((RANK, CONFIG.hidden), np.float32),
        f"{module}.lora_B.weight": np.ones((CONFIG.heads * CONFIG.head_dim, RANK), np.float32),
    }
    return save_adapter(folder, tensors, r=RANK)


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("kind", ["gone", "unreadable"])
def test_real_files_that_cannot_be_read_now_are_read_for_a_later_request(tmp_path: Path, file: str, kind: str) -> None:
    def read(folder: Path) -> Adapter:
        return replace(read_adapter(folder, CONFIG, ({},) * 2, OUTER, tmp_path / "model", RANK), digest=folder.name)

    server = Server(slots=1, max_cached=1, read=read)
    for key in ("1", "2"):
        server.engine.adapters.offer(key, str(save_small(tmp_path / key)))
    server.settle()
    [stored] = [key for key, state in server.states.items() if state == "stored"]
    path, away = tmp_path / stored / file, tmp_path / "away"
    path.rename(away)
    if kind == "unreadable":
        path.symlink_to("/proc/self/mem")  # reads of it fail: Input/output error
    server.submit("now", stored)
    assert server.run()["now"][-1].stop_reason == NO_ADAPTER
    assert server.states[stored] == "stored"
    away.replace(path)
    server.submit("later", stored)
    assert tokens(server.run()["later"])
    assert server.states[stored] == "loaded"


@pytest.mark.parametrize(("unreadable", "may_pass"), [(True, True), (False, False)])
def test_the_state_says_whether_another_attempt_may_succeed(
    tmp_path: Path, *, unreadable: bool, may_pass: bool
) -> None:
    file = save_small(tmp_path / "1") / "adapter_config.json"
    if unreadable:
        file.unlink()
        file.symlink_to("/proc/self/mem")
    else:
        file.write_text("{")
    server = Server(read=lambda folder: read_adapter(folder, CONFIG, ({},) * 2, OUTER, tmp_path / "model", RANK))
    server.engine.adapters.offer("1", str(tmp_path / "1"))
    states = []
    while not states or states[-1].state == "loading":
        server.engine.wait()
        server.engine.step()
        states += server.engine.adapters.changes() or []
    assert (states[-1].state, states[-1].may_pass) == ("failed", may_pass)


WIDER = replace(CONFIG, vocab=VOCAB + 3, added_ids=3)
FIELDS = {
    "prompt": {},
    "stop_token_ids": {"stop_token_ids": (VOCAB,)},
    "logit_bias": {"logit_bias": ((VOCAB, 1.0),)},
    "bad_words": {"bad_words": ((1, VOCAB),)},
    "allowed_token_ids": {"allowed_token_ids": (1, VOCAB)},
    "logprob_token_ids": {"logprob_token_ids": (VOCAB,)},
}


def with_tokens(folder: Path) -> Adapter:
    """Adapter 1 has a row for the first token behind the model's, 2 for none."""
    ids = {"1": [3, VOCAB], "2": [3], "3": []}[folder.name]
    rows = TokenRows(np.array(ids, np.int32), np.zeros((len(ids), CONFIG.hidden), np.float32)) if ids else None
    return Adapter(digest=folder.name, layers=({}, {}), embedding_rows=rows)


@pytest.mark.parametrize("field", FIELDS)
def test_tokens_behind_the_models_are_those_of_the_adapter(field: str) -> None:
    """Before and after it was read, and in every field that names tokens."""
    server = Server(slots=3, read=with_tokens, config=WIDER)
    sampling = SamplingParams(max_tokens=2, **FIELDS[field])
    tokens = [1, 2, VOCAB] if field == "prompt" else [1, 2]

    def ask(name: str, adapter: str) -> None:
        server.engine.submit(Request(id=name, tokens=tokens, sampling=sampling, adapter=adapter))

    refused = f"{field}: token id {VOCAB} is outside the vocabulary of {VOCAB}"
    with pytest.raises(RequestError, match=refused) as error:
        ask("base", "")
    assert error.value.field == field
    server.engine.adapters.offer("1", "/adapters/1")
    server.engine.adapters.offer("2", "/adapters/2")
    ask("first", "1")
    ask("second", "2")
    found = server.run()
    assert found["first"][-1].finish_reason == "length"
    assert (found["second"][-1].error, found["second"][-1].stop_reason) == (refused, REFUSED)
    for adapter in "23":
        server.offer(int(adapter))
        with pytest.raises(RequestError, match=refused):
            ask("again", adapter)
    ask("again", "1")
    assert server.run()["again"][-1].finish_reason == "length"
    assert server.engine.adapters.waiting == []
    server.engine.adapters.withdraw("2")
    assert "2" not in server.engine.adapters._offered, "a refused request holds no slot"


def test_a_lost_rank_ends_the_engine(server: Server) -> None:
    server.reader.lost = {"1"}
    server.engine.adapters.offer("1", "/adapters/1")
    server.submit("waits", "1")
    with pytest.raises(RankLostError, match="rank 1 ended"):
        server.run()


def test_a_lost_rank_ends_an_idle_engine(server: Server) -> None:
    server.reader.lost = {"1"}
    server.engine.adapters.offer("1", "/adapters/1")
    server.engine.adapters.wait()
    loop = EngineLoop(server.engine)
    assert loop.poll_timeout() == 0
    with pytest.raises(RankLostError, match="rank 1 ended"):
        loop.run_once([])


def test_a_loop_that_waits_for_messages_goes_on_when_a_slot_is_free() -> None:
    """The server's loop waits for a message where the engine says that nothing else brings work."""
    server = Server(slots=1)
    server.offer(1, 2)
    loop = EngineLoop(server.engine)
    server.submit("first", "1", tokens=3)
    server.submit("second", "2")
    outputs: list[Output] = []
    while not any(output.id == "second" for output in outputs):
        assert loop.poll_timeout() is not None, "it would wait for a message that may never come"
        outputs += loop.run_once([]).outputs


def test_a_deadline_holds_while_an_adapter_is_read(server: Server) -> None:
    server.reader.gate.clear()
    server.engine.adapters.offer("1", "/adapters/1")
    loop, sampling = EngineLoop(server.engine), SamplingParams(max_tokens=3)
    server.engine.submit(Request(id="due", tokens=[1], sampling=sampling, adapter="1", timeout=5))
    timeout = loop.poll_timeout()
    assert timeout is not None
    assert timeout <= 1, "an engine that is silent for long is taken for a hang"
    server.time += 6
    assert loop.run_once([]).outputs[0].stop_reason == "deadline"
    server.reader.gate.set()


def test_a_withdrawn_adapter_finishes_its_requests(server: Server) -> None:
    server.offer(1)
    server.submit("runs", "1", tokens=10)
    server.engine.step()
    server.engine.adapters.withdraw("1")
    server.submit("on its way", "1")
    assert server.backend.adapters[0] == 1
    found = server.run()
    assert found["runs"][-1].finish_reason == found["on its way"][-1].finish_reason == "length"
    with pytest.raises(RequestError, match=ADAPTER_UNUSABLE):
        server.submit("late", "1")
    assert server.backend.adapters == [None, None]
    assert server.engine.adapters.changes() is None
    server.offer(2)
    server.submit("next", "2")
    assert tokens(server.run()["next"])


def test_requests_that_wait_for_a_withdrawn_adapter_are_served(server: Server) -> None:
    server.reader.gate.clear()
    server.engine.adapters.offer("1", "/adapters/1")
    server.submit("waits", "1")
    server.engine.adapters.withdraw("1")
    server.reader.gate.set()
    assert server.run()["waits"][-1].finish_reason == "length"
    assert server.backend.adapters == [None, None]


def test_an_aborted_or_late_request_gives_its_slot_back() -> None:
    server = Server(slots=1)
    server.offer(1, 2)
    server.submit("runs", "1", tokens=40)
    server.engine.step()
    server.submit("gone", "2")
    server.engine.abort("gone")
    server.submit("waits", "2")
    server.engine.abort("runs")
    assert set(server.run()) == {"waits"}
    sampling = SamplingParams(max_tokens=30)
    server.engine.submit(Request(id="slow", tokens=[1], sampling=sampling, adapter="1", timeout=5))
    server.engine.submit(Request(id="due", tokens=[1], sampling=sampling, adapter="2", timeout=5))
    server.time += 10
    found = server.run()
    assert {output.stop_reason for outputs in found.values() for output in outputs} == {"deadline"}
    server.submit("after", "2")
    assert tokens(server.run()["after"])


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["begin", "end", "place", "room"])), max_size=80))
def test_slots_are_never_shared_and_never_lost(story: list[tuple[int, str]]) -> None:
    slots, users = AdapterSlots(3), dict.fromkeys("012345", 0)
    for number, action in story:
        key = str(number)
        if action == "begin" and slots.acquire(key) is not None:
            users[key] += 1
        elif action == "end" and users[key]:
            slots.release(key)
            users[key] -= 1
        elif action == "place":
            before = slots.keys
            placed = slots.place(key)
            lost = set(before) - set(slots.keys)
            assert all(not users[each] for each in lost), "took the slot of an adapter in use"
            assert (placed is None) == (key not in slots.keys)
        else:
            slots.make_room()
        held = slots.keys
        assert len(held) <= 3
        assert all(users[each] == slots.users(each) for each in held)
        assert all(each in held for each, count in users.items() if count)


def held(server: Server) -> int:
    """Bytes of adapters in host memory."""
    prepared = (each.read.prepared for each in server.engine.adapters._offered.values() if each.read is not None)
    return sum(each.nbytes for each in prepared if each is not None)


def test_adapters_that_exceed_the_memory_are_dropped_and_read_again() -> None:
    server = Server(slots=1, memory=250_000_000)
    server.offer(1, 2, 3)
    assert held(server) == 200_000_000
    assert sorted(server.states.values()) == ["cached", "loaded", "stored"]
    for number in (1, 2, 3, 1, 2, 3):
        server.submit(f"{number}", str(number))
        assert server.run()[f"{number}"][-1].finish_reason == "length"
        assert held(server) <= 350_000_000, "one more while it is read"
    assert held(server) <= 250_000_000


def test_an_adapter_larger_than_the_memory_is_used_alone() -> None:
    server = Server(memory=250_000_000)
    server.offer(1, 2)
    server.submit("long", "1", tokens=8)
    server.engine.step()
    server.offer(99)
    server.submit("large", "99")
    server.submit("short", "2")
    found = server.run()
    assert all(outputs[-1].finish_reason == "length" for outputs in found.values())
    server.submit("again", "2")
    server.run()
    assert server.states == {"1": "stored", "2": "loaded", "99": "stored"}
    assert sorted(server.backend.adapters, key=str) == [2, None], "the backend keeps no other"


def test_adapters_in_use_fit_the_memory_whatever_slots_there_are() -> None:
    server = Server(slots=4, memory=250_000_000)
    server.offer(1, 2, 3, 4)
    for number in (1, 2, 3, 4):
        server.submit(f"{number}", str(number))
    answers: dict[str, list[Output]] = {}
    for _ in range(200):
        server.engine.wait()
        for output in server.engine.step():
            answers.setdefault(output.id, []).append(output)
        server.note()
        assert list(server.states.values()).count("loaded") <= 2
        assert held(server) <= 350_000_000
        if not server.engine.has_work:
            break
    assert sorted(answers) == ["1", "2", "3", "4"], "none waits forever"


@pytest.mark.parametrize("slots", [1, 4])
def test_first_reads_that_requests_wait_for_exceed_the_memory_by_one(slots: int) -> None:
    server = Server(slots=slots, memory=250_000_000)
    keys = [str(key) for key in range(1, 10)]
    server.reader.gate.clear()
    for key in keys:
        server.engine.adapters.offer(key, f"/adapters/{key}")
        server.submit(key, key)
    server.reader.gate.set()
    answers: dict[str, list[Output]] = {}
    for _ in range(400):
        server.engine.wait()
        for output in server.engine.step():
            answers.setdefault(output.id, []).append(output)
        assert held(server) <= 350_000_000
        if not server.engine.has_work:
            break
    assert sorted(answers) == keys, "none waits forever"
    assert all(each[-1].finish_reason == "length" for each in answers.values())
