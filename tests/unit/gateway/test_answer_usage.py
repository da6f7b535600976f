"""Token usage in answers and streams of each API."""

from __future__ import annotations

import json

import pytest

from octavo_gateway.access.usage import TokenUsage
from octavo_protocol.routes import UsageForm

RESPONSES, MESSAGES = UsageForm.RESPONSES, UsageForm.MESSAGES


def event(kind, **data):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data}, separators=(',', ':'))}\n\n".encode()


def response(*, usage=None, **fields):
    return {"id": "resp_1", "object": "response", "usage": usage, **fields}


USED = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 12,
}


def read(form, data):
    usage = TokenUsage(100, sent=True, form=form)
    usage.read(data)
    return usage.prompt, usage.output, usage.cached


def stream(form, *events):
    usage = TokenUsage(100, sent=True, form=form)
    for one in events:
        usage.events(one)
    return usage.prompt, usage.output, usage.cached


def test_a_whole_response() -> None:
    assert read(RESPONSES, json.dumps(response(usage=USED)).encode()) == (9, 3, 4)


def test_metadata_with_the_name_of_usage_hides_nothing() -> None:
    data = json.dumps(response(usage=USED, metadata={"usage": "none", "input_tokens": "0"})).encode()
    assert read(RESPONSES, data) == (9, 3, 4)


def test_the_last_event_of_a_streamed_response_counts() -> None:
    events = [
        event("response.created", response=response(), sequence_number=0),
        event("response.output_text.delta", delta="Hi"),
        event("response.output_text.delta", delta=" there"),
        event("response.completed", response=response(usage=USED)),
    ]
    assert stream(RESPONSES, *events) == (9, 3, 4)
    assert stream(RESPONSES, b"".join(events)) == (9, 3, 4)


def test_a_response_that_ended_early_counts_its_usage() -> None:
    assert stream(RESPONSES, event("response.incomplete", response=response(usage=USED))) == (9, 3, 4)


def test_deltas_count_until_a_response_reports_its_usage() -> None:
    events = [event("response.created", response=response()), event("response.output_text.delta", delta="a")]
    assert stream(RESPONSES, *events, *events[1:]) == (100, 2, None)


def test_output_text_cannot_pose_as_an_event() -> None:
    forged = "\n\nevent: response.completed\ndata: " + json.dumps({"response": response(usage=USED)}) + "\n\n"
    assert stream(RESPONSES, event("response.output_text.delta", delta=forged)) == (100, 1, None)


def test_the_id_of_a_response_is_known_from_its_first_event() -> None:
    usage = TokenUsage(1, form=RESPONSES)
    usage.events(event("response.created", response=response(metadata={"id": "resp_other"})))
    assert usage.answer_id == "resp_1"


def test_a_whole_message_counts_cached_tokens_as_input() -> None:
    used = {
        "input_tokens": 5,
        "cache_creation_input_tokens": 2,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }
    assert read(MESSAGES, json.dumps({"type": "message", "content": [], "usage": used}).encode()) == (11, 3, 4)


def test_a_tools_arguments_are_no_usage() -> None:
    block = {"type": "tool_use", "input": {"usage": {"input_tokens": 0, "output_tokens": 0}}}
    data = json.dumps({"usage": {"input_tokens": 5, "output_tokens": 3}, "content": [block]}).encode()
    assert read(MESSAGES, data) == (5, 3, None)


def test_a_streamed_message_reports_input_first_and_output_last() -> None:
    start = event("message_start", message={"usage": {"input_tokens": 5, "output_tokens": 1}})
    delta = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
    end = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 7})
    assert stream(MESSAGES, start) == (5, 0, None)
    assert stream(MESSAGES, start, delta, delta) == (5, 2, None)
    assert stream(MESSAGES, start, delta, delta, end) == (5, 7, None)


def test_a_last_delta_may_repeat_the_input() -> None:
    end = event("message_delta", usage={"input_tokens": 6, "cache_read_input_tokens": 3, "output_tokens": 7})
    assert stream(MESSAGES, event("message_start", message={"usage": {"input_tokens": 5}}), end) == (9, 7, 3)


def test_usage_in_every_chunk_counts_the_last_one() -> None:
    chunk = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}\n\n'
    assert stream(UsageForm.CHAT, *(chunk % number for number in (1, 2, 3))) == (5, 3, None)


@pytest.mark.parametrize("form", [UsageForm.EMBEDDINGS, UsageForm.CHAT])
def test_embeddings_have_only_prompt_tokens(form) -> None:
    data = b'{"object":"list","data":[],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}'
    assert read(form, data) == (8, 0, None)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b'{"usage":{"input_tokens":-1,"output_tokens":1}}', b'{"usage":[]}']
)
@pytest.mark.parametrize("form", [RESPONSES, MESSAGES])
def test_an_answer_without_plausible_usage_keeps_the_estimate(form, data) -> None:
    assert read(form, data) == (100, 0, None)


def test_an_answer_without_usage_by_design_counts_nothing() -> None:
    assert stream(UsageForm.NONE, b"data: {}\n\n" * 5) == (100, 0, None)
    assert read(UsageForm.NONE, b'{"usage":{"prompt_tokens":8}}') == (100, 0, None)
