"""The table of public routes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from octavo_protocol.routes import OPEN_PATHS, ROUTES, ModelIn, Route, Surface, UsageForm, Work, route, surface_of


def label(one: Route) -> str:
    return f"{one.method} {one.template}"


def test_every_endpoint_of_the_design_is_there() -> None:
    wanted = """
        GET /v1/models, GET /v1/models/{id}, POST /v1/chat/completions, POST /v1/completions, POST /v1/responses,
        GET /v1/responses/{id}, DELETE /v1/responses/{id}, POST /v1/responses/{id}/cancel,
        GET /v1/responses/{id}/input_items, POST /v1/responses/input_tokens, POST /v1/embeddings, POST /score,
        POST /v1/score, POST /rerank, POST /v1/rerank, POST /v2/rerank, POST /v1/messages,
        POST /v1/messages/count_tokens, POST /tokenize, POST /detokenize, GET /tokenizer_info, GET /version,
        GET /livez, GET /readyz, GET /startupz, GET /health
    """
    assert {label(one) for one in ROUTES} == {one.strip() for one in wanted.split(",")}


def test_no_route_is_declared_twice() -> None:
    assert len({(one.method, one.template) for one in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize("one", ROUTES, ids=label)
def test_a_route_is_found_by_its_template(one: Route) -> None:
    assert route(one.method, one.template) is one


def test_an_unknown_route_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        route("PATCH", "/v1/models")


@pytest.mark.parametrize("one", ROUTES, ids=label)
def test_no_earlier_route_hides_a_path(one: Route) -> None:
    path = one.filled(**dict.fromkeys(one.parameters, "x"))
    patterns = [re.sub(r"\\{\w+\\}", "[^/]+", re.escape(re.sub(r":path\}", "}", other.path))) for other in ROUTES]
    first = next(other for other, pattern in zip(ROUTES, patterns, strict=True)
                 if other.method == one.method and re.fullmatch(pattern, path))  # fmt: skip
    assert first is one


def test_only_the_probes_need_no_key() -> None:
    assert {"/livez", "/readyz", "/startupz", "/health"} == OPEN_PATHS


@pytest.mark.parametrize("one", ROUTES, ids=label)
def test_only_routes_with_a_body_have_prompts_streams_and_work(one: Route) -> None:
    assert one.body_limit or not (one.prompt or one.streams or one.in_engine)
    assert (one.model is ModelIn.BODY) <= bool(one.body_limit)


@pytest.mark.parametrize("one", [one for one in ROUTES if one.in_engine], ids=label)
def test_what_takes_the_engine_has_a_prompt_and_usage(one: Route) -> None:
    assert one.prompt
    assert one.usage is not UsageForm.NONE
    assert one.streams == (one.work is Work.GENERATE)


def test_a_parameter_is_filled_in() -> None:
    assert route("GET", "/v1/responses/{id}/input_items").filled(id="resp_1") == "/v1/responses/resp_1/input_items"


def test_a_template_has_no_trace_of_the_kind_of_parameter() -> None:
    found = Route("GET", "/a/{b:path}/{c}", Surface.OPENAI)
    assert (found.template, found.parameters) == ("/a/{b}/{c}", ("b", "c"))


def test_routes_are_values() -> None:
    assert replace(ROUTES[0]) == ROUTES[0]


@pytest.mark.parametrize(
    ("path", "version", "surface"),
    [
        ("/v1/messages", False, Surface.ANTHROPIC),
        ("/v1/messages/count_tokens", False, Surface.ANTHROPIC),
        ("/v1/messages/batches", False, Surface.ANTHROPIC),
        ("/v1/messagesx", False, Surface.OPENAI),
        ("/v1/models", True, Surface.ANTHROPIC),
        ("/v1/models", False, Surface.OPENAI),
        ("/nope", False, Surface.OPENAI),
    ],
)
def test_the_surface_follows_from_path_and_header(path: str, version: bool, surface: Surface) -> None:
    assert surface_of(path, anthropic_version=version) is surface
