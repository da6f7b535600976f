"""Every public route through the gateway: models, keys, limits, usage, errors in the form of each API."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from tests.support.waiting import eventually_async

from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.discovery.endpoints import Deployment, table
from octavo_gateway.pool.replica_selector import ReplicaSelector
from octavo_gateway.queueing.hold_queue import Bounds
from octavo_protocol.routes import ROUTES, ModelIn, Surface, Work, route

A = {"Authorization": "Bearer alpha"}
FORWARDED = [one for one in ROUTES if one.surface is not Surface.HEALTH and not one.path.startswith("/v1/models")]
STORED = [one for one in FORWARDED if one.model is ModelIn.STORED]
OTHERS = [one for one in FORWARDED if one.model is not ModelIn.STORED]
IN_ENGINE = [one for one in OTHERS if one.in_engine]
READING = [one for one in OTHERS if not one.in_engine]
COUNT = route("POST", "/v1/messages/count_tokens")
INFO = route("GET", "/tokenizer_info")


def label(one):
    return f"{one.method} {one.template}"


@pytest.fixture
def keys(tmp_path):
    def make(**fields):
        path = tmp_path / "keys"
        entries = [{"name": "team-a", "key": "alpha", **fields}, {"name": "team-b", "key": "beta"}]
        path.write_text(json.dumps({"keys": entries}))
        return KeyFile(path)

    return make


@pytest.fixture
def full(monkeypatch):
    """No replica has room for one more request."""
    monkeypatch.setattr(ReplicaSelector, "select_with_headroom", lambda *arguments: (None, 0.0))


def ask(world, one, *, body=None, query="", path="", **arguments):
    """A request of a route."""
    body = {"model": "m", **(body or {})} if one.body_limit else None
    url = world.url + (path or one.filled(**dict.fromkeys(one.parameters, "resp_1"))) + query
    return world.client.request(one.method, url, json=body, **arguments)


def answering(answer, status=200, **headers):
    async def behave(request, body):
        return web.json_response(answer, status=status, headers=headers)

    return behave


def sample(world, name, **labels):
    return world.metrics.registry.get_sample_value(name, labels)


def two_models(world, *pods):
    deployments = [Deployment("ns", f"d{i}", (f"m{i}",), True, endpoints=(pod.endpoint(),))
                   for i, pod in enumerate(pods)]  # fmt: skip
    world.registry.update(table(deployments))


@pytest.mark.parametrize("one", OTHERS, ids=label)
async def test_a_request_reaches_a_replica_under_its_own_path(world, one):
    await world.start()
    pod = await world.pod()
    pool = world.has(pod.endpoint())
    async with ask(world, one) as response:
        assert response.status == 200
    ((request, body),) = pod.seen
    assert (request.method, request.path) == (one.method, one.path)
    assert json.loads(body or b"{}") == ({"model": "m"} if one.body_limit else {})
    assert pool.in_flight == 0


@pytest.mark.parametrize("one", OTHERS, ids=label)
async def test_requests_are_counted_by_the_routes_template(world, one):
    await world.start()
    world.has((await world.pod()).endpoint())
    async with ask(world, one, query="?a=b") as response:
        assert response.status == 200
    labels = {"model": "m", "route": one.template, "code": "200"}
    assert sample(world, "octavo_gateway_requests_total", **labels) == 1


@pytest.mark.parametrize("one", FORWARDED, ids=label)
async def test_every_route_counts_against_the_limit_of_requests(world, keys, one):
    await world.start(keys=keys(requestsPerMinute=1))
    world.has((await world.pod()).endpoint())
    async with ask(world, one, headers=A) as response:
        assert response.status in {200, 404}
    async with ask(world, one, headers=A) as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1
        assert response.headers["x-ratelimit-limit-requests"] == "1"


@pytest.mark.parametrize("one", OTHERS, ids=label)
async def test_a_model_that_a_key_may_not_use_does_not_exist(world, keys, one):
    await world.start(keys=keys(models=["other"]))
    pod = await world.pod()
    world.has(pod.endpoint())
    async with ask(world, one, query="?model=m", headers=A) as response:
        assert response.status == 404
    assert not pod.seen


USAGES = {
    "chat": {"prompt_tokens": 7, "completion_tokens": 5},
    "completions": {"prompt_tokens": 7, "completion_tokens": 5},
    "embeddings": {"prompt_tokens": 12, "total_tokens": 12},
    "responses": {"input_tokens": 7, "output_tokens": 5},
    "messages": {"input_tokens": 7, "output_tokens": 5},
}


@pytest.mark.parametrize("one", IN_ENGINE, ids=label)
async def test_the_usage_of_an_answer_is_charged(world, keys, one):
    await world.start(keys=keys(tokensPerMinute=1000))
    world.has((await world.pod(answering({"id": "x", "usage": USAGES[one.usage.value]}))).endpoint())
    async with ask(world, one, headers=A) as response:
        assert response.status == 200
    account = world.access.accounts.known["team-a"]
    await eventually_async(lambda: account.open == 0)
    assert account.tokens.level == 1000 - 12
    tokens = [sample(world, "octavo_gateway_tokens_total", model="m", route=one.template, kind=kind)
              for kind in ("prompt", "generation")]  # fmt: skip
    assert tokens == ([7, 5] if one.work is Work.GENERATE else [12, 0])


@pytest.mark.parametrize("one", READING, ids=label)
async def test_what_needs_no_engine_costs_no_tokens(world, keys, one):
    await world.start(keys=keys(tokensPerMinute=1000))
    world.has((await world.pod(answering({"input_tokens": 500, "usage": {"prompt_tokens": 500}}))).endpoint())
    async with ask(world, one, body={"prompt": "a" * 4000}, headers=A) as response:
        assert response.status == 200
    account = world.access.accounts.known["team-a"]
    await eventually_async(lambda: account.open == 0)
    assert account.tokens.level == 1000


async def test_a_background_response_is_charged_the_usual_length(world, keys):
    await world.start(keys=keys(tokensPerMinute=1000))
    world.has((await world.pod(answering({"id": "resp_1", "status": "queued", "usage": None}))).endpoint())
    account = world.access.accounts.of("team-a", world.access.identify(A).limits, 0.0)
    for most, cost in ((None, 128), (16, 16)):
        before = account.tokens.level
        body = {"model": "m", "input": "", "background": True, "max_output_tokens": most}
        async with world.post(body, "/v1/responses", headers=A) as response:
            assert response.status == 200
        await eventually_async(lambda: account.open == 0)
        assert before - account.tokens.level == pytest.approx(cost, abs=2)


async def test_a_background_response_that_reports_its_usage_is_charged_that(world, keys, streams):
    await world.start(keys=keys(tokensPerMinute=1000))
    world.has((await world.pod(streams(RESPONSE))).endpoint())
    async with world.post({"model": "m", "stream": True, "background": True}, "/v1/responses", headers=A) as response:
        await response.read()
    account = world.access.accounts.known["team-a"]
    await eventually_async(lambda: account.open == 0)
    assert account.tokens.level == 1000 - 34


def events(*kinds_and_data):
    return [f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode() for kind, data in kinds_and_data]


MESSAGE = events(
    ("message_start", {"message": {"id": "msg_1", "usage": {"input_tokens": 30, "output_tokens": 0}}}),
    ("content_block_delta", {"delta": {"type": "text_delta", "text": "Hi"}}),
    ("message_delta", {"usage": {"output_tokens": 4}}),
    ("message_stop", {}),
)
RESPONSE = events(
    ("response.created", {"response": {"id": "resp_9"}, "sequence_number": 0}),
    ("response.output_text.delta", {"delta": "Hi", "sequence_number": 1}),
    ("response.completed", {"response": {"id": "resp_9", "usage": {"input_tokens": 30, "output_tokens": 4}}}),
)


@pytest.mark.parametrize(("path", "chunks"), [("/v1/messages", MESSAGE), ("/v1/responses", RESPONSE)])
async def test_a_stream_passes_unchanged_and_its_usage_is_charged(world, keys, streams, path, chunks):
    await world.start(keys=keys(tokensPerMinute=1000))
    world.has((await world.pod(streams(chunks))).endpoint())
    async with world.post({"model": "m", "stream": True}, path, headers=A) as response:
        assert await response.read() == b"".join(chunks)
    account = world.access.accounts.known["team-a"]
    await eventually_async(lambda: account.open == 0)
    assert account.tokens.level == 1000 - 34


@pytest.mark.parametrize(("path", "chunks"), [("/v1/messages", MESSAGE), ("/v1/responses", RESPONSE)])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_stream_without_its_last_event_is_an_error_of_the_canary(world, streams, path, chunks, whole):
    await world.start()
    pod = await world.pod(streams(chunks if whole else chunks[:-1]))
    deployment = Deployment("ns", "d", ("m",), True, endpoints=(pod.endpoint(),), canary_step="1")
    world.registry.update(table([deployment]))
    async with world.post({"model": "m", "stream": True}, path) as response:
        await response.read()
    pool = world.registry.find("m").pool
    await eventually_async(lambda: pool.in_flight == 0)
    stable = pool.accounting.canary.stable
    assert (stable.requests, stable.errors) == (1, 0 if whole else 1)


@pytest.mark.parametrize(
    ("path", "chunks", "kind"),
    [("/v1/messages", MESSAGE[:2], "error"), ("/v1/responses", RESPONSE[:2], "error")],
)
async def test_a_broken_stream_ends_with_an_error_event_of_its_api(world, streams, path, chunks, kind):
    await world.start()
    world.has((await world.pod(streams([*chunks, b"event: torn"], cut=True))).endpoint())
    async with world.post({"model": "m", "stream": True}, path) as response:
        data = (await response.read()).decode()
        request_id = response.headers["X-Request-Id"]
    head, _, rest = data.rpartition("event: ")
    assert head.encode() == b"".join(chunks)
    name, _, content = rest.partition("\ndata: ")
    assert name == kind
    found = json.loads(content)
    assert found["type"] == "error"
    if path == "/v1/messages":
        assert found["error"]["type"] == "api_error"
        assert found["request_id"] == request_id
    else:
        assert (found["code"], found["sequence_number"]) == ("replica_lost", 2)


@pytest.mark.parametrize(
    ("form", "path"), [("anthropic", "/v1/messages"), ("responses", "/v1/responses"), ("openai", "/v1/completions")]
)
async def test_a_refusal_after_keep_alives_is_an_error_event_of_its_api(world, form, path):
    await world.start(grace=0.01, keep_alive=5)
    world.has()
    refusal = {"error": {"message": "no", "type": "invalid_request_error", "param": "input", "code": "wrong"}}
    async with world.post({"model": "m", "stream": True}, path) as response:
        await response.content.readuntil(b"\n\n")
        world.has((await world.pod(answering(refusal, 400))).endpoint())
        *_, last = (await response.read()).split(b": keep-alive\n\n")
    name, _, data = last.partition(b"data: ")
    found = json.loads(data)
    if form == "responses":
        wanted = {"type": "error", "code": "wrong", "message": "no", "param": "input", "sequence_number": 0}
        assert (name, found) == (b"event: error\n", wanted)
    else:
        assert (name, found) == (b"event: error\n" if form == "anthropic" else b"", refusal)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_refusals_of_the_gateway_have_anthropics_form(world, keys, path):
    await world.start(keys=keys(requestsPerMinute=1))
    world.has()
    seen = {}
    for name, headers, body in (
        ("key", {}, {"model": "m"}),
        ("model", A, {"model": "nope"}),
        ("body", A, {}),
    ):
        async with world.client.post(world.url + path, json=body, headers=headers) as response:
            found = await response.json()
            assert set(found) == {"type", "error", "request_id"}
            assert set(found["error"]) == {"type", "message"}
            assert found["request_id"] == response.headers["request-id"] == response.headers["X-Request-Id"]
            seen[name] = response.status, found["error"]["type"]
    assert seen == {
        "key": (401, "authentication_error"),
        "model": (404, "not_found_error"),
        "body": (400, "invalid_request_error"),
    }


async def test_a_limit_in_anthropics_form(world, keys):
    await world.start(keys=keys(requestsPerMinute=1))
    world.has((await world.pod()).endpoint())
    async with ask(world, COUNT, headers=A) as response:
        assert response.status == 200
    async with ask(world, COUNT, headers=A) as response:
        assert response.status == 429
        assert (await response.json())["error"]["type"] == "rate_limit_error"
        assert "Retry-After" in response.headers


async def test_no_replica_in_anthropics_form(world):
    await world.start()
    world.has(hold=False)
    async with world.post({"model": "m"}, "/v1/messages") as response:
        assert response.status == 503
        assert (await response.json())["error"]["type"] == "overloaded_error"
        assert "Retry-After" in response.headers


async def test_an_unknown_path_of_anthropics_api_has_its_form(world):
    await world.start()
    async with world.post({}, "/v1/messages/batches") as response:
        assert response.status in {404, 405}
        assert (await response.json())["error"]["type"] in {"not_found_error", "invalid_request_error"}


@pytest.mark.parametrize("one", READING, ids=label)
async def test_what_needs_no_engine_passes_by_a_full_queue(world, full, one):
    await world.start(bounds=Bounds(seconds=5))
    pod = await world.pod()
    pool = world.has(pod.endpoint())
    waiting = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    async with ask(world, one) as response:
        assert response.status == 200
    waiting.cancel()


@pytest.mark.parametrize("one", READING, ids=label)
async def test_what_needs_no_engine_waits_for_a_replica_and_wakes_the_model(world, one):
    await world.start()
    pool = world.has()
    call = asyncio.create_task(ask(world, one).__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    assert not pool.available()
    pod = await world.pod()
    world.has(pod.endpoint())
    response = await call
    assert response.status == 200
    response.release()


async def test_what_needs_no_engine_does_not_wait_for_requests_that_found_no_room(world, full):
    await world.start()
    pool = world.has()
    first = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    second = asyncio.create_task(ask(world, COUNT).__aenter__())
    await eventually_async(lambda: len(pool.queue) == 2)
    world.has((await world.pod()).endpoint())
    (await second).release()
    assert not first.done()
    first.cancel()


async def test_reading_changes_no_load_no_demand_and_no_turn(world):
    await world.start()
    gate = asyncio.Event()

    async def wait(request, body):
        await gate.wait()
        return web.json_response({})

    pod = await world.pod(wait)
    pool = world.has(pod.endpoint())
    call = asyncio.create_task(ask(world, COUNT).__aenter__())
    await eventually_async(lambda: len(pod.seen) == 1)
    (replica,) = pool.replicas.values()
    assert (replica.load.in_flight.requests, replica.load.growth, pool.router.turns) == (0, 0.0, 0)
    gate.set()
    (await call).release()
    await eventually_async(lambda: pool.in_flight == 0)
    assert (pool.counters.arrivals, replica.load.in_flight.requests) == (0, 0)
    assert pool.counters.last_arrival > 0


async def test_reading_is_spread_over_all_replicas(world):
    await world.start()
    pods = [await world.pod() for _ in range(3)]
    world.has(*(pod.endpoint() for pod in pods))
    for _ in range(60):
        async with ask(world, COUNT) as response:
            assert response.status == 200
    assert all(len(pod.seen) > 5 for pod in pods)


async def test_embeddings_are_no_answers_whose_length_is_learned(world):
    await world.start()
    pool = world.has((await world.pod(answering({"usage": {"prompt_tokens": 3}}))).endpoint())
    before = pool.lengths.usual
    async with ask(world, route("POST", "/v1/embeddings"), body={"input": "x"}) as response:
        assert response.status == 200
    assert pool.lengths.usual == before


async def test_a_stream_field_on_a_route_without_streams_begins_none(world):
    await world.start(grace=0.01, keep_alive=0.01)
    world.has()
    call = asyncio.create_task(world.post({"model": "m", "stream": True}, "/v1/embeddings").__aenter__())
    await asyncio.sleep(0.1)
    assert not call.done()
    world.has((await world.pod(answering({}, 400))).endpoint())
    response = await call
    assert response.status == 400
    response.release()


@pytest.mark.parametrize("one", [one for one in OTHERS if one.model is ModelIn.BODY_OR_QUERY], ids=label)
async def test_the_only_model_need_not_be_named(world, one):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    arguments = {"json": {"prompt": "x"}} if one.body_limit else {}
    async with world.client.request(one.method, world.url + one.path, **arguments) as response:
        assert response.status == 200


@pytest.mark.parametrize("one", [one for one in OTHERS if one.model is ModelIn.BODY_OR_QUERY], ids=label)
async def test_one_of_several_models_has_to_be_named(world, one):
    await world.start()
    pods = [await world.pod(), await world.pod()]
    two_models(world, *pods)
    arguments = {"json": {"prompt": "x"}} if one.body_limit else {}
    async with world.client.request(one.method, world.url + one.path, **arguments) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["param"] == "model"
    assert "?model=NAME" in error["message"]
    async with world.client.request(one.method, world.url + one.path + "?model=m1", **arguments) as response:
        assert response.status == 200
    assert [len(pod.seen) for pod in pods] == [0, 1]


async def test_the_only_model_that_a_key_may_use_need_not_be_named(world, keys):
    await world.start(keys=keys(models=["m1"]))
    pods = [await world.pod(), await world.pod()]
    two_models(world, *pods)
    async with world.client.get(world.url + INFO.path, headers=A) as response:
        assert response.status == 200
    assert [len(pod.seen) for pod in pods] == [0, 1]


async def test_the_query_reaches_the_replica_without_the_gateways_part(world):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    async with world.client.get(f"{world.url}/tokenizer_info?a=1&model=m&b=%2F") as response:
        assert response.status == 200
    assert pod.seen[0][0].rel_url.raw_query_string == "a=1&b=/"


@pytest.mark.parametrize("body", [{"previous_response_id": 5}, {"prompt_cache_key": [1]}, {"input": None}, {"n": {}}])
async def test_malformed_fields_are_left_to_the_replica(world, body):
    await world.start()
    pod = await world.pod(answering({"error": {"message": "no"}}, 400))
    world.has(pod.endpoint())
    async with world.post({"model": "m", **body}, "/v1/responses") as response:
        assert response.status == 400
    assert len(pod.seen) == 1


@pytest.mark.parametrize("one", IN_ENGINE, ids=label)
async def test_another_replica_is_tried_before_the_first_byte(world, one):
    await world.start()
    bad = await world.pod(answering({}, 503, **{"X-Octavo-Draining": "1"}))
    good = await world.pod()
    world.has(bad.endpoint(), good.endpoint())
    for _ in range(4):
        async with ask(world, one) as response:
            assert response.status == 200
    assert len(good.seen) == 4


@pytest.mark.parametrize("one", READING, ids=label)
async def test_reading_avoids_a_replica_that_drains(world, one):
    await world.start()
    bad = await world.pod(answering({}, 503, **{"X-Octavo-Draining": "1"}))
    good = await world.pod()
    world.has(bad.endpoint(), good.endpoint())
    for _ in range(8):
        async with ask(world, one) as response:
            assert response.status == 200
    assert len(bad.seen) <= 1


async def test_the_clients_deadline_reaches_the_replica_on_every_route(world):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    for one in OTHERS:
        async with ask(world, one, headers={"X-Request-Timeout": "5"}) as response:
            assert response.status == 200
    assert all(0 < float(request.headers["X-Request-Timeout"]) <= 5 for request, _ in pod.seen)


async def test_startup_and_health_probes(world):
    await world.start()
    for path, synced, draining, status in (
        ("/startupz", False, False, 503),
        ("/startupz", True, True, 200),
        ("/health", True, False, 200),
        ("/health", True, True, 503),
    ):
        world.status.synced, world.status.draining = synced, draining
        async with world.client.get(world.url + path) as response:
            assert response.status == status, path


VERSION = {"anthropic-version": "2023-06-01"}


async def test_models_in_anthropics_form(world):
    await world.start()
    world.has()
    async with world.client.get(world.url + "/v1/models", headers=VERSION) as response:
        listed = await response.json()
    first = {"type": "model", "id": "m", "display_name": "m", "created_at": "1970-01-01T00:00:07Z"}
    assert listed["data"] == [first, {**first, "id": "alias", "display_name": "alias"}]
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "m", "alias")
    async with world.client.get(world.url + "/v1/models/m", headers=VERSION) as response:
        assert await response.json() == first


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ("limit=2", ["a", "b"], True),
        ("limit=2&after_id=b", ["c", "d"], True),
        ("after_id=d", ["e"], False),
        ("limit=2&before_id=d", ["b", "c"], True),
        ("before_id=c", ["a", "b"], False),
        ("after_id=e", [], False),
    ],
)
async def test_pages_of_models(world, query, ids, more):
    await world.start()
    world.has(models=tuple("abcde"))
    async with world.client.get(f"{world.url}/v1/models?{query}", headers=VERSION) as response:
        listed = await response.json()
    assert [one["id"] for one in listed["data"]] == ids
    assert listed["has_more"] is more
    assert (listed["first_id"], listed["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after_id=nope", "before_id=nope"])
async def test_a_malformed_page_of_models(world, query):
    await world.start()
    world.has()
    async with world.client.get(f"{world.url}/v1/models?{query}", headers=VERSION) as response:
        assert response.status == 400
        found = await response.json()
    assert found["error"]["type"] == "invalid_request_error"
    assert query.partition("=")[0] in found["error"]["message"]


async def test_an_unknown_model_in_anthropics_form(world):
    await world.start()
    async with world.client.get(world.url + "/v1/models/nope", headers=VERSION) as response:
        assert response.status == 404
        assert (await response.json())["error"]["type"] == "not_found_error"
