"""The endpoints in OpenAI's format."""

from __future__ import annotations

from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.openai.chat import chat_completions
from octavo_inference.server.openai.completions import completions
from octavo_inference.server.openai.embeddings import EmbeddingRequest, EmbeddingResponse, embeddings
from octavo_inference.server.openai.models import get_model, list_models
from octavo_inference.server.openai.requests import ChatRequest, CompletionRequest
from octavo_inference.server.openai.responses import ChatChunk, ChatResponse, ModelList, ModelObject, TextResponse

ENDPOINTS = (
    HttpEndpoint("GET", "/v1/models", list_models, answer=ModelList),
    HttpEndpoint("GET", "/v1/models/{name:path}", get_model, answer=ModelObject, errors=(404,)),
    HttpEndpoint(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        body=ChatRequest,
        answer=ChatResponse,
        event=ChatChunk,
        example={"messages": [{"role": "user", "content": "Name the capital of France."}], "max_tokens": 32},
    ),
    HttpEndpoint(
        "POST",
        "/v1/completions",
        completions,
        body=CompletionRequest,
        answer=TextResponse,
        event=TextResponse,
        example={"prompt": "The capital of France is", "max_tokens": 8},
    ),
    HttpEndpoint(
        "POST",
        "/v1/embeddings",
        embeddings,
        body=EmbeddingRequest,
        answer=EmbeddingResponse,
        errors=(504,),
        example={"input": ["The capital of France is Paris."]},
    ),
)
