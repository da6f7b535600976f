"""The endpoints of OpenAI's Responses API."""

from __future__ import annotations

from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.openai_responses.create import create_response
from octavo_inference.server.openai_responses.events import StreamEvent
from octavo_inference.server.openai_responses.input_tokens import count_input_tokens
from octavo_inference.server.openai_responses.request_body import CreateResponseBody, InputTokensBody
from octavo_inference.server.openai_responses.resource import (
    DeletedResponse,
    InputTokenCount,
    ItemPage,
    ResponseObject,
)
from octavo_inference.server.openai_responses.stored import (
    InputItemsQuery,
    RetrieveQuery,
    cancel_response,
    delete_response,
    get_response,
    list_input_items,
)

_ONE = "/v1/responses/{id}"

ENDPOINTS = (
    HttpEndpoint(
        "POST",
        "/v1/responses",
        create_response,
        body=CreateResponseBody,
        answer=ResponseObject,
        event=StreamEvent,
        example={"input": "Name the capital of France.", "max_output_tokens": 32},
    ),
    HttpEndpoint(
        "POST",
        "/v1/responses/input_tokens",
        count_input_tokens,
        body=InputTokensBody,
        answer=InputTokenCount,
        example={"input": "Name the capital of France."},
    ),
    HttpEndpoint(
        "GET", _ONE, get_response, answer=ResponseObject, event=StreamEvent, query=RetrieveQuery, errors=(400, 404)
    ),
    HttpEndpoint("DELETE", _ONE, delete_response, answer=DeletedResponse, errors=(404,)),
    HttpEndpoint("POST", f"{_ONE}/cancel", cancel_response, answer=ResponseObject, errors=(400, 404)),
    HttpEndpoint(
        "GET", f"{_ONE}/input_items", list_input_items, answer=ItemPage, query=InputItemsQuery, errors=(400, 404)
    ),
)
