"""The public HTTP routes, declared once for the server and the gateway. Pure data.

From the table follow keys, body limits and documentation at the server; and at the gateway, in addition, where a
request's model and prompt are, and how the answer reports its token usage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

BODY_LIMIT: Final = 8 * 2**20
"""Bytes of the largest request body."""

_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


class Surface(Enum):
    """The API that a route belongs to. It decides the form of errors: `ANTHROPIC` has its own, all others OpenAI's."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    SCORES = "scores"
    TOKENS = "tokens"
    HEALTH = "health"


class Work(Enum):
    """The work of a replica for one request. Only `GENERATE` and `ENCODE` take a row in the engine."""

    GENERATE = "computes the prompt and generates tokens"
    ENCODE = "computes the prompt and generates no token"
    READ = "needs no engine"


class ModelIn(Enum):
    """Where a request names its model."""

    BODY = "field `model` of the body, required"
    BODY_OR_QUERY = "field `model` of the body, or parameter `model` of the query; the only model if both are missing"
    STORED = "not at all: the stored response in the path belongs to a model"
    NOWHERE = "the route is not about one model, or names it in the path"


class UsageForm(Enum):
    """The form in which answers and stream events report token usage.

    `CHAT` and `COMPLETIONS`: `usage.prompt_tokens` and `usage.completion_tokens`, in a stream in the last chunk.
    `EMBEDDINGS`: `usage.prompt_tokens`. `RESPONSES`: `usage.input_tokens` and `usage.output_tokens`, in a stream in the
    final event's `response`. `MESSAGES`: the same names, in a stream the input in `message_start` and the output in
    `message_delta`.
    """

    NONE = "none"
    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Route:
    """One public route.

    `path` has parameters in braces: `{id}` is one segment, `{id:path}` the rest of the path. `body_limit` is in bytes;
    0 if the route takes no body. `prompt`: the body's fields with prompt text, in the order in which the model reads
    them. `streams`: `"stream": true` in the body asks for an event stream. `continues`: `previous_response_id` in the
    body names a stored response.
    """

    method: str
    path: str
    surface: Surface
    work: Work = Work.READ
    model: ModelIn = ModelIn.NOWHERE
    prompt: tuple[str, ...] = ()
    usage: UsageForm = UsageForm.NONE
    needs_key: bool = True
    body_limit: int = 0
    streams: bool = False
    continues: bool = False

    @property
    def template(self) -> str:
        """The path as people read it, with `{id}` for every parameter: a bounded label for metrics."""
        return _PARAMETER.sub(r"{\1}", self.path)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the path's parameters."""
        return tuple(name for name, _ in _PARAMETER.findall(self.path))

    @property
    def in_engine(self) -> bool:
        """True if a request takes a row in the engine."""
        return self.work is not Work.READ

    def filled(self, **values: str) -> str:
        """The path with its parameters' values, which are inserted as they are."""
        return _PARAMETER.sub(lambda parameter: values[parameter[1]], self.path)


def _generate(path: str, surface: Surface, usage: UsageForm, *prompt: str) -> Route:
    return Route("POST", path, surface, Work.GENERATE, ModelIn.BODY, prompt, usage, body_limit=BODY_LIMIT, streams=True)


def _encode(path: str, surface: Surface, *prompt: str) -> Route:
    return Route("POST", path, surface, Work.ENCODE, ModelIn.BODY, prompt, UsageForm.EMBEDDINGS, body_limit=BODY_LIMIT)


def _read(path: str, surface: Surface, model: ModelIn, *, continues: bool = False) -> Route:
    return Route("POST", path, surface, model=model, body_limit=BODY_LIMIT, continues=continues)


def _stored(method: str, path: str) -> Route:
    return Route(method, path, Surface.OPENAI, model=ModelIn.STORED)


def _probe(path: str) -> Route:
    return Route("GET", path, Surface.HEALTH, needs_key=False)


ROUTES: Final = (
    Route("GET", "/v1/models", Surface.OPENAI),
    Route("GET", "/v1/models/{id:path}", Surface.OPENAI),
    _generate("/v1/chat/completions", Surface.OPENAI, UsageForm.CHAT, "tools", "functions", "messages"),
    _generate("/v1/completions", Surface.OPENAI, UsageForm.COMPLETIONS, "prompt"),
    replace(
        _generate("/v1/responses", Surface.OPENAI, UsageForm.RESPONSES, "tools", "instructions", "input"),
        continues=True,
    ),
    _read("/v1/responses/input_tokens", Surface.OPENAI, ModelIn.BODY_OR_QUERY, continues=True),
    _stored("GET", "/v1/responses/{id}"),
    _stored("DELETE", "/v1/responses/{id}"),
    _stored("POST", "/v1/responses/{id}/cancel"),
    _stored("GET", "/v1/responses/{id}/input_items"),
    _encode("/v1/embeddings", Surface.OPENAI, "input"),
    *(_encode(path, Surface.SCORES, "text_1", "text_2") for path in ("/score", "/v1/score")),
    *(_encode(path, Surface.SCORES, "query", "documents") for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    _generate("/v1/messages", Surface.ANTHROPIC, UsageForm.MESSAGES, "tools", "system", "messages"),
    _read("/v1/messages/count_tokens", Surface.ANTHROPIC, ModelIn.BODY),
    _read("/tokenize", Surface.TOKENS, ModelIn.BODY_OR_QUERY),
    _read("/detokenize", Surface.TOKENS, ModelIn.BODY_OR_QUERY),
    Route("GET", "/tokenizer_info", Surface.TOKENS, model=ModelIn.BODY_OR_QUERY),
    Route("GET", "/version", Surface.HEALTH),
    _probe("/livez"),
    _probe("/readyz"),
    _probe("/startupz"),
    _probe("/health"),
)
"""All public routes. A path without a parameter comes before those that would match it too."""

OPEN_PATHS: Final = frozenset(route.path for route in ROUTES if not route.needs_key)
"""The paths that need no key."""


def route(method: str, template: str) -> Route:
    """The route of a method and a template. Raises `KeyError` if there is none."""
    return _BY_TEMPLATE[method, template]


def surface_of(path: str, *, anthropic_version: bool) -> Surface:
    """The surface that decides the form of an answer, errors of unknown paths included.

    `anthropic_version`: the request has the header `anthropic-version`, which only Anthropic's clients send. Both APIs
    have `/v1/models`.
    """
    messages = path == "/v1/messages" or path.startswith("/v1/messages/")
    return Surface.ANTHROPIC if messages or anthropic_version else Surface.OPENAI


_BY_TEMPLATE: Final = {(one.method, one.template): one for one in ROUTES}
