"""The fields of request bodies that the gateway reads."""

from __future__ import annotations

import json

import msgspec
import pytest

from octavo_gateway.api.errors import ApiError
from octavo_gateway.api.request_head import MOST_OUTPUT, most_output, read_head
from octavo_protocol.response_id import item_id, response_id
from octavo_protocol.routes import Work, route

CHAT = route("POST", "/v1/chat/completions")
TOKENIZE = route("POST", "/tokenize")


def test_the_prompt_of_several_fields_is_read_in_the_order_of_the_model():
    body = b'{"model":"m","messages":[{"role":"user"}],"system":"Be brief."}'
    head = read_head(body, route("POST", "/v1/messages"))
    assert head.text(("system", "messages")) == b'"Be brief."[{"role":"user"}'
    assert head.text(("system", "instructions")) == b'"Be brief.'
    assert head.text(("instructions",)) == b""


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 0}, 0),
        ({"max_completion_tokens": 7, "max_tokens": 9}, 7),
        ({"max_output_tokens": 8}, 8),
        ({"max_tokens": 5, "n": 3}, 15),
        ({"max_tokens": 5, "n": 2, "best_of": 4}, 20),
        ({"max_tokens": -1}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "5", "n": []}, None),
        ({"max_tokens": 10**400}, MOST_OUTPUT),
    ],
)
def test_the_bound_of_an_answer(fields, most):
    assert most_output(read_head(json.dumps({"model": "m", **fields}).encode(), CHAT), Work.GENERATE) == most


def test_an_embedding_generates_nothing():
    assert most_output(read_head(b'{"model":"m","max_tokens":9}', CHAT), Work.ENCODE) == 0


def test_only_some_routes_need_the_name_of_a_model():
    assert read_head(b"{}", TOKENIZE).model == ""
    with pytest.raises(ApiError, match="`model` is missing or empty"):
        read_head(b"{}", CHAT)


@pytest.mark.parametrize("body", [b'{"model":null}', b'{"model":5}', b"[]", b"{", b'{"stream":1}'])
def test_a_malformed_body_is_refused_on_every_route(body):
    for one in (CHAT, TOKENIZE):
        with pytest.raises(ApiError) as refused:
            read_head(body, one)
        assert refused.value.status == 400


MADE = response_id("chat-0", "0123456789abcdef" * 2)
MESSAGE, CALL, THINKING = (item_id(MADE, kind, number) for number, kind in enumerate(("msg", "fc", "rs")))
REFERENCE = {"type": "item_reference", "id": MESSAGE}
ASKED = {"role": "user", "content": "Why?"}


@pytest.mark.parametrize(
    ("fields", "earlier"),
    [
        ({}, None),
        ({"input": "msg_ of a text"}, None),
        ({"input": [REFERENCE, ASKED]}, MADE),
        ({"input": [ASKED, {"id": MESSAGE}]}, MADE),
        ({"input": [{"type": "item_reference", "id": "msg_1"}, REFERENCE]}, MADE),
        ({"input": [{"type": "item_reference", "id": CALL}, ASKED]}, MADE),
        ({"input": [ASKED, {"id": THINKING}]}, MADE),
        ({"input": [{"type": "function_call", "id": CALL, "call_id": "call_1", "name": "f", "arguments": "{}"}]}, None),
        ({"input": [{"type": "reasoning", "id": THINKING, "content": []}]}, None),
        ({"input": [REFERENCE], "previous_response_id": "resp_1"}, "resp_1"),
        ({"input": [REFERENCE | ASKED | {"type": "message"}]}, None),
        ({"input": [{"id": MESSAGE} | ASKED]}, None),
        ({"input": [REFERENCE | {"id": ["msg_1"]}]}, None),
        ({"input": [REFERENCE, "msg_"]}, None),
        ({"input": '"msg_'}, None),
    ],
)
def test_a_reference_leads_to_the_response_of_its_item(fields, earlier):
    head = read_head(json.dumps({"model": "m"} | fields).encode(), route("POST", "/v1/responses"))
    assert head.earlier_response() == earlier


def test_tools_are_the_beginning_of_the_prompt():
    fields = {"model": "m", "messages": [{"role": "user"}], "tools": [{"type": "function"}]}
    chat = route("POST", "/v1/chat/completions")
    found = read_head(msgspec.json.encode(fields), chat).text(chat.prompt)
    assert found == b'[{"type":"function"}][{"role":"user"}'
