"""The endpoints in Anthropic's format."""

from __future__ import annotations

from octavo_inference.server.anthropic.messages import count_tokens, messages
from octavo_inference.server.anthropic.requests import CountTokensRequest, MessagesRequest
from octavo_inference.server.anthropic.responses import AnswerMessage, Event, TokenCount
from octavo_inference.server.endpoint import HttpEndpoint

ENDPOINTS = (
    HttpEndpoint("POST", "/v1/messages", messages, MessagesRequest, AnswerMessage, Event),
    HttpEndpoint("POST", "/v1/messages/count_tokens", count_tokens, CountTokensRequest, TokenCount),
)
