"""Messages of the Responses API are those that OpenAI's client declares, checked strictly."""

from __future__ import annotations

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter
from tests.unit.api.test_responses import events

EVENT = TypeAdapter(ResponseStreamEvent)
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


@pytest.mark.parametrize("fields", [{}, LOGPROBS, {"max_output_tokens": 2}, {"background": True}])
async def test_a_response_is_the_clients(serve, fields):
    async with serve() as server:
        made = await server.respond(**fields)
    assert Response.model_validate_json(made.text).id == made.json()["id"]


@pytest.mark.parametrize("fields", [{}, LOGPROBS, {"max_output_tokens": 2}, {"background": True}])
async def test_every_event_is_one_of_the_clients(serve, fields):
    async with serve() as server:
        stream = events((await server.respond(stream=True, **fields)).text)
    assert [EVENT.validate_python(event).type for event in stream] == [event["type"] for event in stream]


async def test_a_failed_stream_is_the_clients(serve):
    async with serve(fail_at=4, pace=0.02) as server:
        stream = events((await server.respond(stream=True)).text)
    assert EVENT.validate_python(stream[-1]).response.error.code == "server_error"


async def test_lists_and_counts_are_the_clients(serve):
    async with serve() as server:
        first = (await server.respond()).json()
        second = (await server.respond(previous_response_id=first["id"])).json()
        page = await server.api.get(f"/v1/responses/{second['id']}/input_items")
        count = await server.api.post("/v1/responses/input_tokens", json={"input": "x"})
    assert len(ResponseItemList.model_validate_json(page.text).data) == 3
    assert InputTokenCountResponse.model_validate_json(count.text).input_tokens > 1
