"""The writer of events: for any answer, a stream has the whole text, and its numbers have no gap."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tests.unit.api.test_response_store import response
from tests.unit.api.test_responses import events, text_of

from octavo_inference.core.request import Output
from octavo_inference.server.errors import internal
from octavo_inference.server.generation import Piece, TokenCounts
from octavo_inference.server.openai.responses import ChatLogprob, TopLogprob
from octavo_inference.server.openai_responses.answer import Answer
from octavo_inference.server.openai_responses.events import EventWriter, failure, introduction_of
from octavo_inference.server.openai_responses.outcome import finished
from octavo_inference.tokenizer.detokenizer import Delta, Detokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LOGPROB = st.builds(
    ChatLogprob,
    TEXT,
    st.floats(-50, 0),
    st.just([1]),
    st.lists(st.builds(TopLogprob, TEXT, st.floats(-50, 0), st.just([2])), max_size=2),
)


@settings(max_examples=scaled(100), deadline=None)
@given(
    pieces=st.lists(st.tuples(TEXT, st.lists(LOGPROB, max_size=2)), min_size=1, max_size=12),
    status=st.sampled_from(["queued", "in_progress"]),
    obfuscate=st.booleans(),
)
def test_a_stream_is_the_response_for_any_pieces(
    pieces: list[tuple[str, list[ChatLogprob]]], status: str, obfuscate: bool
) -> None:
    draft = response("resp_1", status=status)
    answer = Answer(draft, is_plain=True)
    writer = EventWriter(obfuscate=obfuscate)
    stream = writer.write(introduction_of(draft))
    for text, logprobs in pieces:
        stream += writer.write(answer.add(Piece(text, [1]), logprobs))
    final = finished(answer, TokenCounts(3, len(pieces)))
    stream += writer.write(answer.closing(final))
    found = events(b"".join(stream).decode())
    assert [event["sequence_number"] for event in found] == list(range(len(stream)))
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == "".join(text for text, _ in pieces)
    assert found[-1]["response"] == json.loads(msgspec.json.encode(final))
    logged = json.loads(msgspec.json.encode([row for _, logprobs in pieces for row in logprobs]))
    assert [row for event in deltas for row in event["logprobs"]] == logged
    assert found[-1]["response"]["output"][0]["content"][0]["logprobs"] == logged
    assert text_of(found[-1]["response"]) == "".join(text for text, _ in pieces)


def test_a_failure_of_the_server_is_an_error_event() -> None:
    [event] = events(EventWriter(7).write([failure(internal("r1"))])[0].decode())
    assert event == {
        "type": "error",
        "sequence_number": 7,
        "code": "internal_error",
        "message": "Internal error; the server's log has details under request id r1.",
        "param": None,
    }


async def test_a_bug_in_the_middle_of_a_stream_is_that_event_and_logged(serve, monkeypatch, caplog):
    push = Detokenizer.push

    def fail(self: Detokenizer, output: Output) -> Delta:
        if len(output.tokens) and self._count == 3:
            raise KeyError("a secret of the server")
        return push(self, output)

    monkeypatch.setattr(Detokenizer, "push", fail)
    async with serve(pace=0.02) as server:
        stream = events((await server.respond(stream=True)).text)
        assert server.service.router.sequences == 0
    assert (stream[-1]["type"], stream[-1]["code"]) == ("error", "internal_error")
    assert "secret" not in str(stream)
    assert "a secret of the server" in caplog.text
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))


async def test_a_bug_in_the_background_fails_its_response_alone(serve, monkeypatch, caplog):
    def fail(self: Detokenizer, output: Output) -> Delta:
        raise KeyError("a secret of the server")

    async with serve(hold=True) as server:
        monkeypatch.setattr(Detokenizer, "push", fail)
        made = (await server.respond(background=True, stream=False)).json()
        server.release()
        stream = events((await server.api.get(f"/v1/responses/{made['id']}", params={"stream": "true"})).text)
        monkeypatch.undo()
        assert (await server.respond()).status_code == 200
    assert (stream[-1]["type"], stream[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert "secret" not in str(stream)
    assert "a secret of the server" in caplog.text
