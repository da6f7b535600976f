"""One request per public route, from the gateway to a model's replicas and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.e2e.examples import changed, remove
from tests.e2e.waiting import patiently

from demo.cluster import Cluster
from octavo_protocol.routes import ROUTES, ModelIn, Route

NAME = "surfaces"
QUESTION = "What is the capital of France?"
TURN = [{"role": "user", "content": QUESTION}]
TEXTS = {"text_1": QUESTION, "text_2": ["Paris.", "A cake recipe."]}
DOCUMENTS = {"query": QUESTION, "documents": ["Paris.", "A cake recipe."]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURN, "max_tokens": 4},
    "/v1/completions": {"prompt": "The capital of France is", "max_tokens": 4},
    "/v1/responses": {"input": QUESTION, "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"input": QUESTION},
    "/v1/embeddings": {"input": QUESTION},
    "/score": TEXTS,
    "/v1/score": TEXTS,
    "/rerank": DOCUMENTS,
    "/v1/rerank": DOCUMENTS,
    "/v2/rerank": DOCUMENTS,
    "/v1/messages": {"messages": TURN, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": TURN},
    "/tokenize": {"prompt": QUESTION},
    "/detokenize": {"tokens": [1, 2, 3]},
}
WITH_BODY = [one for one in ROUTES if one.body_limit]


def template(one: Route) -> str:
    return one.template


@pytest.fixture(scope="module")
def client(cluster: Cluster, url: str, example: str) -> Iterator[httpx.Client]:
    """A client of the gateway, with a model of two replicas behind it."""
    cluster.apply(changed(example, NAME, replicas=2))
    try:
        patiently("two replicas", lambda: len(cluster.ready_pods(NAME)) == 2, timeout=240)
        with httpx.Client(base_url=url, timeout=120) as made:
            patiently("routed", lambda: made.get(f"/v1/models/{NAME}").status_code == 200, timeout=60)
            yield made
    finally:
        remove(cluster, NAME)


def post(client: httpx.Client, path: str, **fields: Any) -> Any:
    response = client.post(path, json={"model": NAME, **BODIES[path], **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_every_route_with_a_body_has_a_request_here() -> None:
    assert {one.path for one in WITH_BODY} == set(BODIES)


@pytest.mark.parametrize("one", WITH_BODY, ids=template)
def test_a_route_with_a_body_answers(client: httpx.Client, one: Route) -> None:
    answer = post(client, one.path)
    if one.in_engine:
        assert max(count for count in answer["usage"].values() if isinstance(count, int)) > 0


@pytest.mark.parametrize("one", [one for one in WITH_BODY if one.streams], ids=template)
def test_a_route_with_streams_streams_to_its_end(client: httpx.Client, one: Route) -> None:
    body = {"model": NAME, **BODIES[one.path], "stream": True}
    with client.stream("POST", one.path, json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    last = {"/v1/messages": "event: message_stop", "/v1/responses": "event: response."}.get(one.path, "data: [DONE]")
    assert any(line.startswith(last) for line in lines[-2:]), lines[-4:]
    assert not [line for line in lines if line.startswith("event: error") or '"error":{' in line]


@pytest.mark.parametrize(
    "one", [one for one in ROUTES if one.method == "GET" and one.model is not ModelIn.STORED], ids=template
)
def test_a_route_to_read_answers(client: httpx.Client, one: Route) -> None:
    response = client.get(one.filled(id=NAME) if one.parameters else one.path, params={"model": NAME})
    assert response.status_code == 200, response.text


def test_a_stored_response_is_found_from_every_gateway(client: httpx.Client) -> None:
    made = post(client, "/v1/responses")["id"]
    path = f"/v1/responses/{made}"
    for _ in range(6):
        # A new connection each time: the gateway's Service spreads them over its replicas.
        assert httpx.get(client.base_url.join(path), timeout=30).json()["id"] == made
    assert client.get(f"{path}/input_items").json()["data"]
    assert post(client, "/v1/responses", previous_response_id=made)["previous_response_id"] == made
    assert client.delete(path).json()["deleted"] is True
    assert client.get(path).status_code == 404


def test_a_background_response_can_be_cancelled(client: httpx.Client) -> None:
    made = post(client, "/v1/responses", background=True, max_output_tokens=512)["id"]
    cancelled = client.post(f"/v1/responses/{made}/cancel")
    assert cancelled.status_code == 200, cancelled.text
    assert cancelled.json()["status"] in {"cancelled", "completed"}


def test_models_in_the_form_of_anthropics_clients(client: httpx.Client) -> None:
    listed = client.get("/v1/models", headers={"anthropic-version": "2023-06-01"}, params={"limit": 1000}).json()
    assert NAME in {model["id"] for model in listed["data"]}
    assert listed["has_more"] is False


def test_errors_have_the_form_of_their_api(client: httpx.Client) -> None:
    of_openai = client.post("/v1/responses", json={"model": "nope"}).json()
    of_anthropic = client.post("/v1/messages", json={"model": "nope"}).json()
    assert set(of_openai["error"]) == {"message", "type", "param", "code"}
    assert (of_anthropic["type"], of_anthropic["error"]["type"]) == ("error", "not_found_error")
