"""Stored responses over HTTP: conversations that continue, background, and the endpoints of one response."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.waiting import eventually_async
from tests.unit.api.test_responses import ANSWER, QUESTION, events, text_of

from octavo_inference.server.auth import Keys
from octavo_inference.server.openai_responses.store import StoreLimits
from octavo_protocol.response_id import replica_tag, tag_of

OFF = StoreLimits()


async def test_a_response_is_kept_and_given_again(serve):
    async with serve() as server:
        made = (await server.respond()).json()
        found = await server.api.get(f"/v1/responses/{made['id']}")
    assert found.json() == made
    assert made["store"] is True


async def test_a_streamed_response_is_kept_before_its_last_event(serve):
    async with serve() as server:
        last = events((await server.respond(stream=True)).text)[-1]["response"]
        found = await server.api.get(f"/v1/responses/{last['id']}")
    assert found.json() == last


async def test_store_false_keeps_nothing(serve):
    async with serve() as server:
        made = (await server.respond(store=False)).json()
        found = await server.api.get(f"/v1/responses/{made['id']}")
    assert made["store"] is False
    assert (found.status_code, found.json()["error"]["code"]) == (404, "response_not_found")


async def test_an_id_names_its_replica(serve):
    async with serve() as server:
        made = (await server.respond()).json()
    assert tag_of(made["id"]) == replica_tag("pod-1")


async def test_a_server_without_store_says_so(serve):
    async with serve(store=OFF) as server:
        made = await server.respond()
        refused = [await server.respond(**{field: True}) for field in ("store", "background")]
        previous = await server.respond(previous_response_id=made.json()["id"])
    assert made.json()["store"] is False
    assert [(each.status_code, each.json()["error"]["param"]) for each in refused] == [
        (400, "store"),
        (400, "background"),
    ]
    assert all("--response-store-entries" in each.json()["error"]["message"] for each in refused)
    assert previous.json()["error"]["code"] == "previous_response_not_found"


async def test_a_conversation_continues_without_the_earlier_instructions(serve, template):
    async with serve() as server:
        first = (await server.respond(instructions="Be brief.")).json()
        second = (await server.respond(input="And Spain?", previous_response_id=first["id"])).json()
        third = (await server.respond(input="Why?", instructions="Be long.", previous_response_id=second["id"])).json()
    turns = [*QUESTION, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "And Spain?"}]
    assert server.engine.seen[1].tokens == template.tokens(turns)
    more = [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": "Why?"}]
    system = {"role": "system", "content": "Be long."}
    assert server.engine.seen[2].tokens == template.tokens([system, *turns, *more])
    assert third["previous_response_id"] == second["id"]


async def test_an_earlier_item_may_be_given_by_its_id(serve, template):
    async with serve() as server:
        first = (await server.respond()).json()
        given = [{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "Why?"}]
        await server.respond(input=[*QUESTION, *given])
        await server.respond(input=[{"id": first["output"][0]["id"]}, {"role": "user", "content": "Why?"}])
    turns = [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": "Why?"}]
    assert server.engine.seen[1].tokens == template.tokens([*QUESTION, *turns])
    assert server.engine.seen[2].tokens == template.tokens(turns)


async def test_responses_of_another_key_do_not_exist(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    async with serve(keys=Keys(str(keys), "--api-key-file")) as server:
        mine, other = {"x-api-key": "one"}, {"x-api-key": "two"}
        made = (await server.respond(mine)).json()
        path = f"/v1/responses/{made['id']}"
        answers = [
            await server.api.get(path, headers=other),
            await server.api.get(f"{path}/input_items", headers=other),
            await server.api.post(f"{path}/cancel", headers=other),
            await server.api.delete(path, headers=other),
        ]
        previous = await server.respond(other, previous_response_id=made["id"])
        reference = await server.respond(other, input=[{"type": "item_reference", "id": made["output"][0]["id"]}])
        assert (await server.api.get(path, headers=mine)).status_code == 200
    assert [answer.status_code for answer in answers] == [404] * 4
    assert previous.json()["error"]["code"] == "previous_response_not_found"
    assert reference.json()["error"]["code"] == "item_not_found"


async def test_the_gateways_tenants_are_apart_too(serve):
    async with serve(tenant_header=True) as server:
        made = (await server.respond({"X-Octavo-Tenant": "a"})).json()
        path = f"/v1/responses/{made['id']}"
        found = [(await server.api.get(path, headers={"X-Octavo-Tenant": name})).status_code for name in "ab"]
    assert found == [200, 404]


async def test_a_deleted_response_is_gone(serve):
    async with serve() as server:
        path = f"/v1/responses/{(await server.respond()).json()['id']}"
        deleted = await server.api.delete(path)
        again = [await server.api.get(path), await server.api.delete(path)]
    assert deleted.json() == {"id": path.rpartition("/")[2], "object": "response", "deleted": True}
    assert [answer.status_code for answer in again] == [404, 404]


async def test_input_items_come_in_pages(serve):
    async with serve() as server:
        items = [{"id": f"msg_{number}", "role": "user", "content": str(number)} for number in range(5)]
        path = f"/v1/responses/{(await server.respond(input=items)).json()['id']}/input_items"
        newest = (await server.api.get(path)).json()
        first = (await server.api.get(path, params={"order": "asc", "limit": 2})).json()
        rest = (await server.api.get(path, params={"order": "asc", "after": first["last_id"]})).json()
        nothing = (await server.api.get(path, params={"after": "msg_0"})).json()
    assert [item["id"] for item in newest["data"]] == [f"msg_{number}" for number in reversed(range(5))]
    assert ([item["id"] for item in first["data"]], first["has_more"]) == (["msg_0", "msg_1"], True)
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (["msg_2", "msg_3", "msg_4"], False)
    assert nothing == {"data": [], "first_id": None, "last_id": None, "has_more": False, "object": "list"}
    assert newest["data"][0]["content"] == [{"type": "input_text", "text": "4"}]


async def test_input_items_have_the_earlier_responses(serve):
    async with serve() as server:
        first = (await server.respond()).json()
        second = (await server.respond(input="Why?", previous_response_id=first["id"])).json()
        page = (await server.api.get(f"/v1/responses/{second['id']}/input_items")).json()
    assert [item["role"] for item in page["data"]] == ["user", "assistant", "user"]
    assert page["data"][1]["id"] == first["output"][0]["id"]


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "up"}, {"after": "msg_none"}]
)
async def test_a_wrong_page_is_refused(serve, query):
    async with serve() as server:
        path = f"/v1/responses/{(await server.respond()).json()['id']}/input_items"
        answer = await server.api.get(path, params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(query)))


async def test_background_returns_at_once_and_can_be_polled(serve):
    async with serve(hold=True) as server:
        made = (await server.respond(background=True)).json()
        path = f"/v1/responses/{made['id']}"
        waiting = (await server.api.get(path)).json()
        server.release()
        await eventually_async(lambda: server.service.responses.get("", made["id"]).is_final)
        final = (await server.api.get(path)).json()
    assert (made["status"], made["output"]) == (waiting["status"], waiting["output"]) == ("queued", [])
    assert (final["status"], text_of(final)) == ("completed", ANSWER)


async def test_a_running_one_is_in_progress_and_cannot_be_continued(serve):
    async with serve(pace=0.05) as server:
        made = (await server.respond(background=True, max_output_tokens=15)).json()
        path = f"/v1/responses/{made['id']}"

        async def status() -> bool:
            return (await server.api.get(path)).json()["status"] == "in_progress"

        await eventually_async(status)
        refused = await server.respond(previous_response_id=made["id"])
    assert refused.json()["error"]["code"] == "previous_response_not_final"


async def test_background_goes_on_without_its_client(serve):
    async with serve(listen=True, pace=0.01) as server:
        body = {"model": "m", "input": "x", "stream": True, "background": True}
        async with server.api.stream("POST", "/v1/responses", json=body) as response:
            async for line in response.aiter_lines():
                if "delta" in line:
                    break
        [entry] = server.service.responses._entries.values()
        await eventually_async(lambda: entry.run.final)
        final = (await server.api.get(f"/v1/responses/{entry.id}")).json()
    assert text_of(final) == ANSWER


@pytest.mark.parametrize("fields", [{}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}])
async def test_a_background_stream_can_be_resumed_at_any_event(serve, fields):
    async with serve() as server:
        live = (await server.respond(background=True, stream=True, **fields)).text
        path = f"/v1/responses/{events(live)[0]['response']['id']}"
        for after in (None, *range(len(events(live)))):
            query = {"stream": "true"} | ({} if after is None else {"starting_after": after})
            again = (await server.api.get(path, params=query)).text
            rest = events(live)[0 if after is None else after + 1 :]
            assert (events(again) if again.strip(": kep-aliv\n") else []) == rest


async def test_a_running_stream_is_followed_from_where_it_broke(serve):
    async with serve(listen=True, pace=0.02) as server:
        body = {"model": "m", "input": "x", "stream": True, "background": True}
        seen = []
        async with server.api.stream("POST", "/v1/responses", json=body) as response:
            async for line in response.aiter_lines():
                seen.append(line)
                if line.startswith("data") and len([each for each in seen if "delta" in each]) > 6:
                    break
        first = events("\n".join(seen) + "\n")
        path = f"/v1/responses/{first[0]['response']['id']}"
        query = {"stream": "true", "starting_after": first[-1]["sequence_number"]}
        rest = events((await server.api.get(path, params=query)).text)
    stream = first + rest
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert "".join(event["delta"] for event in stream if event["type"].endswith("delta")) == ANSWER


async def test_a_cancelled_response_keeps_its_text_and_frees_the_engine(serve):
    async with serve(listen=True, pace=0.02) as server:
        made = (await server.respond(background=True)).json()
        path = f"/v1/responses/{made['id']}"
        follower = asyncio.ensure_future(server.api.get(path, params={"stream": "true"}))
        await eventually_async(lambda: server.service.responses.get("", made["id"]).run.started)
        cancelled = (await server.api.post(f"{path}/cancel")).json()
        again = (await server.api.post(f"{path}/cancel")).json()
        stream = events((await follower).text)
        await eventually_async(lambda: not server.engine.sequences)
        assert server.service.router.sequences == 0
    assert cancelled == again
    assert cancelled["status"] == "cancelled"
    assert ANSWER.startswith(text_of(cancelled))
    assert (stream[-1]["type"], stream[-1]["response"]) == ("response.incomplete", cancelled)


async def test_one_that_is_cancelled_before_it_starts(serve):
    async with serve(hold=True) as server:
        made = (await server.respond(background=True)).json()
        cancelled = (await server.api.post(f"/v1/responses/{made['id']}/cancel")).json()
    assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
    assert server.service.router.sequences == 0


async def test_a_finished_response_is_cancelled_without_effect(serve):
    async with serve() as server:
        made = (await server.respond(background=True)).json()
        path = f"/v1/responses/{made['id']}"
        await eventually_async(lambda: server.service.responses.get("", made["id"]).is_final)
        assert (await server.api.post(f"{path}/cancel")).json()["status"] == "completed"


async def test_only_background_can_be_cancelled_or_streamed_again(serve):
    async with serve() as server:
        path = f"/v1/responses/{(await server.respond()).json()['id']}"
        answers = [
            await server.api.post(f"{path}/cancel"),
            await server.api.get(path, params={"stream": "true"}),
            await server.api.get(path, params={"starting_after": "3"}),
            await server.api.get(path, params={"starting_after": "null"}),
            await server.api.get(path, params={"stream": "perhaps"}),
        ]
    assert [answer.status_code for answer in answers] == [400] * 5


async def test_a_deleted_running_response_stops(serve):
    async with serve(hold=True) as server:
        made = (await server.respond(background=True)).json()
        await server.api.delete(f"/v1/responses/{made['id']}")
        assert server.service.router.sequences == 0
        assert len(server.service.responses) == 0


async def test_background_beyond_the_store_is_refused_and_not_generated(serve):
    limits = StoreLimits(entries=1, bytes=2**20, ttl=60.0, tenant_percent=100)
    async with serve(hold=True, store=limits) as server:
        await server.respond(background=True)
        refused = await server.respond(background=True)
        assert server.service.router.sequences == 1
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_full")
    assert int(refused.headers["retry-after"]) > 0


async def test_background_that_outgrows_the_store_fails(serve):
    limits = StoreLimits(entries=9, bytes=3500, ttl=60.0, tenant_percent=100)
    async with serve(store=limits, answer=ANSWER * 20) as server:
        made = (await server.respond(background=True)).json()
        path = f"/v1/responses/{made['id']}"
        await eventually_async(lambda: server.service.responses.get("", made["id"]).is_final)
        final = (await server.api.get(path)).json()
        assert server.service.responses.bytes <= limits.bytes
        assert server.service.router.sequences == 0
        cancelled = (await server.api.post(f"{path}/cancel")).json()
    assert final["status"] == "failed"
    assert "response store" in final["error"]["message"]
    assert cancelled == final


async def test_a_conversation_too_large_for_the_store_is_answered_but_not_in_the_background(serve):
    limits = StoreLimits(entries=9, bytes=8000, ttl=60.0, tenant_percent=100)
    async with serve(store=limits) as server:
        text = "word " * 220
        made = await server.respond(input=text)
        found = await server.api.get(f"/v1/responses/{made.json()['id']}")
        refused = await server.respond(input=text, background=True)
    assert (made.status_code, found.status_code) == (200, 404)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")


async def test_a_failure_in_the_background_is_kept(serve):
    async with serve(fail_at=4, pace=0.02) as server:
        made = (await server.respond(background=True)).json()
        await eventually_async(lambda: server.service.responses.get("", made["id"]).is_final)
        final = (await server.api.get(f"/v1/responses/{made['id']}")).json()
    assert (final["status"], final["error"]["code"]) == ("failed", "server_error")


async def test_background_needs_a_stored_response(serve):
    async with serve() as server:
        refused = await server.respond(background=True, store=False)
    assert refused.json()["error"]["param"] == "background"


async def test_metrics_count_stored_responses(serve):
    async with serve() as server:
        await server.respond()
        text = (await server.admin.get("/metrics")).text
        size = server.service.responses.bytes
    assert 'octavo:response_store_entries{model_name="m"} 1.0' in text
    assert f'octavo:response_store_bytes{{model_name="m"}} {float(size)}' in text
