"""The endpoints in Anthropic's format."""

from __future__ import annotations

from octavo_inference.server.anthropic.messages import count_tokens, messages
from octavo_inference.server.anthropic.requests import CountTokensRequest, MessagesRequest
from octavo_inference.server.anthropic.responses import AnswerMessage, AnthropicError, Event, TokenCount
from octavo_inference.server.endpoint import HttpEndpoint

_EXAMPLE = {"messages": [{"role": "user", "content": "Name the capital of France."}]}

ENDPOINTS = (
    HttpEndpoint(
        "POST",
        "/v1/messages",
        messages,
        body=MessagesRequest,
        answer=AnswerMessage,
        event=Event,
        error=AnthropicError,
        example=_EXAMPLE | {"max_tokens": 32},
    ),
    HttpEndpoint(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        body=CountTokensRequest,
        answer=TokenCount,
        error=AnthropicError,
        example=_EXAMPLE,
    ),
)
