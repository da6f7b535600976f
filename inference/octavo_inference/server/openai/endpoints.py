"""The endpoints in OpenAI's format."""

from __future__ import annotations

from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.openai.chat import chat_completions
from octavo_inference.server.openai.completions import completions
from octavo_inference.server.openai.models import get_model, list_models

ENDPOINTS = (
    HttpEndpoint("GET", "/v1/models", list_models),
    HttpEndpoint("GET", "/v1/models/{name:path}", get_model),
    HttpEndpoint("POST", "/v1/chat/completions", chat_completions),
    HttpEndpoint("POST", "/v1/completions", completions),
)
