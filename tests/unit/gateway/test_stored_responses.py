"""Requests that refer to a stored response reach the replica that has it."""

from __future__ import annotations

import json
from collections import Counter
from uuid import uuid4

import pytest
from aiohttp import web
from tests.support.ports import free_port

from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.discovery.endpoints import Deployment, Endpoint, table
from octavo_gateway.http.response_finder import AT_A_TIME
from octavo_gateway.pool.replica_selector import ReplicaSelector
from octavo_gateway.pool.stored_responses import StoredAt, StoredResponses, is_response_id
from octavo_protocol.response_id import ITEM_KINDS, item_id, response_id

PATH = "/v1/responses"


def storing(tenants=None):
    """A pod that stores responses, for the tenants in the header."""
    stored: dict[tuple[str, str], object] = {}

    async def behave(request, body):
        tenant = request.headers.get("X-Octavo-Tenant", "")
        wanted = request.path.split("/")[3] if request.path.count("/") > 2 else ""
        if not wanted:
            given = json.loads(body)
            previous = given.get("previous_response_id")
            if previous is not None and (tenant, previous) not in stored:
                return web.json_response({"error": {"message": "previous"}}, status=404)
            made = response_id(given.get("user", "x"), uuid4().hex)
            stored[tenant, made] = given
            return web.json_response({"id": made, "usage": None})
        if (tenant, wanted) not in stored:
            return web.json_response({"error": {"message": "unknown"}}, status=404)
        if request.method == "DELETE":
            del stored[tenant, wanted]
        return web.json_response({"id": wanted, "path": request.path_qs})

    return behave


async def create(world, **fields):
    headers = fields.pop("headers", {})
    async with world.post({"model": "m", **fields}, PATH, headers=headers) as response:
        assert response.status == 200
        return (await response.json())["id"]


def served(pods):
    """Requests by pod, other than searches of the gateway."""
    return Counter(index for index, pod in enumerate(pods) for _ in pod.seen)


@pytest.fixture
async def pods(world):
    await world.start()
    made = [await world.pod(storing()) for _ in range(3)]
    world.has(*(pod.endpoint() for pod in made))
    return made


async def test_the_next_turn_reaches_the_replica_of_the_first(world, pods):
    for _ in range(8):
        before = served(pods)
        first = await create(world)
        second = await create(world, previous_response_id=first)
        await create(world, previous_response_id=second)
        assert list((served(pods) - before).values()) == [3]


@pytest.mark.parametrize("kind", ITEM_KINDS)
async def test_a_reference_to_an_item_reaches_the_replica_that_has_it(world, pods, kind):
    for number in range(8):
        before = served(pods)
        first = await create(world)
        await create(world, input=[{"type": "item_reference", "id": item_id(first, kind, number)}])
        assert list((served(pods) - before).values()) == [2]


async def test_tokens_of_a_next_turn_are_counted_where_the_first_is(world, pods):
    for _ in range(5):
        before = served(pods)
        made = await create(world)
        async with world.post({"model": "m", "previous_response_id": made}, f"{PATH}/input_tokens"):
            pass
        assert list((served(pods) - before).values()) == [2]


@pytest.mark.parametrize(
    ("method", "rest"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items?limit=5&order=asc")]
)
async def test_a_stored_response_is_found(world, pods, method, rest):
    for _ in range(5):
        made = await create(world)
        async with world.client.request(method, f"{world.url}{PATH}/{made}{rest}") as response:
            assert response.status == 200
            assert (await response.json())["path"] == f"{PATH}/{made}{rest}"


async def test_the_gateway_asks_nobody_for_what_it_remembers(world, pods):
    made = await create(world)
    before = sum(served(pods).values())
    async with world.client.get(f"{world.url}{PATH}/{made}") as response:
        assert response.status == 200
    assert sum(served(pods).values()) == before + 1


def forget(world):
    """As another gateway, which has not seen the answers."""
    world.forwarding.finder.stored = StoredResponses()


async def test_another_gateway_finds_a_response_by_asking(world, pods):
    made = await create(world)
    forget(world)
    async with world.client.get(f"{world.url}{PATH}/{made}") as response:
        assert response.status == 200
    assert await create(world, previous_response_id=made)


async def test_another_gateway_finds_a_response_by_the_tag_of_its_id(world):
    await world.start()
    pods = [await world.pod(storing()) for _ in range(3)]
    world.has(*(pod.endpoint(name=f"pod-{index}") for index, pod in enumerate(pods)))
    made = [await create(world, user="pod-0") for _ in range(12)]
    forget(world)
    before = served(pods)
    for one in made:
        async with world.client.get(f"{world.url}{PATH}/{one}") as response:
            assert response.status in {200, 404}
    assert served(pods) - before == {0: 12}


async def test_an_unknown_response_is_asked_for_once_at_each_replica(world, pods):
    async with world.client.get(f"{world.url}{PATH}/resp_unknown") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert (error["code"], error["param"]) == ("response_not_found", "response_id")
    assert served(pods) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("name", ["a.b", "a%2Fb", "a%20b", "x" * 129, "%00", "%2e%2e"])
async def test_what_is_no_id_is_asked_for_nowhere(world, pods, name):
    async with world.client.get(f"{world.url}{PATH}/{name}") as response:
        assert response.status in {400, 404}
    assert not served(pods)


async def test_a_search_for_a_response_of_many_replicas_asks_in_groups(world):
    await world.start()
    pods = [await world.pod() for _ in range(2)]
    holder = await world.pod(storing())
    ends = [Endpoint(f"p{index}", f"{pods[index % 2].url}/{index}") for index in range(AT_A_TIME + 3)]
    pods[0].behave = pods[1].behave = storing()
    world.has(holder.endpoint())
    made = await create(world)
    forget(world)
    world.has(*ends, holder.endpoint())
    async with world.client.get(f"{world.url}{PATH}/{made}") as response:
        assert response.status == 200


async def test_a_replica_that_cannot_be_asked_leaves_it_open_whether_a_response_exists(world, pods):
    dead = f"http://127.0.0.1:{free_port()}"
    world.has(*(pod.endpoint() for pod in pods), Endpoint(dead, dead))
    async with world.client.get(f"{world.url}{PATH}/resp_unknown") as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"


async def test_a_response_of_a_replica_that_is_gone_is_not_found(world, pods):
    made = await create(world)
    world.has((await world.pod(storing())).endpoint())
    async with world.client.get(f"{world.url}{PATH}/{made}") as response:
        assert response.status == 404
    async with world.post({"model": "m", "previous_response_id": made}, PATH) as response:
        assert response.status == 404
        assert (await response.json())["error"]["message"] == "previous"


async def test_a_stored_response_wakes_no_model(world):
    await world.start()
    pool = world.has()
    async with world.client.get(f"{world.url}{PATH}/resp_1") as response:
        assert response.status == 404
    assert not len(pool.queue)


async def test_a_replica_that_does_not_take_the_request_is_no_reason_to_ask_another(world):
    await world.start()

    async def die(request, body):
        request.transport.abort()

    pods = [await world.pod(storing()), await world.pod(storing())]
    world.has(*(pod.endpoint() for pod in pods))
    made = await create(world)
    (home,) = [pod for pod in pods if pod.seen]
    home.behave = die
    async with world.client.get(f"{world.url}{PATH}/{made}") as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "model_unavailable"
        assert int(response.headers["Retry-After"]) >= 1


async def test_a_draining_replica_still_answers_for_its_responses(world, pods):
    made = await create(world)
    (home,) = [pod for pod in pods if pod.seen]
    pool = world.has(*(pod.endpoint(ready=pod is not home) for pod in pods))
    assert pool.available()
    async with world.client.get(f"{world.url}{PATH}/{made}") as response:
        assert response.status == 200


async def test_tenants_do_not_find_each_others_responses(world, tmp_path):
    path = tmp_path / "keys"
    path.write_text("alpha\nbeta\n")
    await world.start(keys=KeyFile(path))
    pods = [await world.pod(storing()) for _ in range(2)]
    world.has(*(pod.endpoint() for pod in pods))
    own, other = ({"Authorization": f"Bearer {key}"} for key in ("alpha", "beta"))
    made = await create(world, headers=own)
    async with world.client.get(f"{world.url}{PATH}/{made}", headers=other) as response:
        assert response.status == 404
    async with world.client.get(f"{world.url}{PATH}/{made}", headers=own) as response:
        assert response.status == 200


async def test_a_response_is_found_among_several_models_without_naming_one(world):
    await world.start()
    pods = [await world.pod(storing()) for _ in range(2)]
    world.registry.update(
        table(Deployment("ns", f"d{i}", (f"m{i}",), True, endpoints=(pod.endpoint(),)) for i, pod in enumerate(pods))
    )
    async with world.post({"model": "m1"}, PATH) as response:
        made = (await response.json())["id"]
    forget(world)
    for query, status in (("", 200), ("?model=m1", 200), ("?model=m0", 404), ("?model=nope", 404)):
        async with world.client.get(f"{world.url}{PATH}/{made}{query}") as response:
            assert response.status == status, query


async def test_the_id_of_a_streamed_response_is_learned(world, streams):
    await world.start()
    data = json.dumps({"type": "response.created", "response": {"id": "resp_s"}})
    chunks = [f"event: response.created\ndata: {data}\n\n".encode(), b"event: response.completed\ndata: {}\n\n"]
    pod = await world.pod(streams(chunks))
    world.has(pod.endpoint())
    async with world.post({"model": "m", "stream": True}, PATH) as response:
        await response.read()
    pod.behave = storing()
    assert world.forwarding.finder.stored.find("", "resp_s").url == pod.url


async def test_next_turns_pass_by_a_full_queue(world, monkeypatch, pods):
    made = await create(world)
    monkeypatch.setattr(ReplicaSelector, "select_with_headroom", lambda *arguments: (None, 0.0))
    assert await create(world, previous_response_id=made)


def test_places_are_bounded_and_apart_by_tenant():
    places = StoredResponses(limit=10)
    for number in range(100):
        places.learn("a", f"resp_{number}", StoredAt(("ns", "d"), "pod", "http://pod"))
    assert 5 <= len(places) <= 10
    assert places.find("a", "resp_99")
    assert not places.find("b", "resp_99")
    assert not places.find("a", "resp_0")


@pytest.mark.parametrize("text", ["", "a/b", "../x", "a b", "é", "x" * 129, 5, None, ["a"]])
def test_what_is_no_id_of_a_response(text):
    assert not is_response_id(text)
