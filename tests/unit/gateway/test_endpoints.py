"""From Services and EndpointSlices to the table of models and pods."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_gateway.discovery.endpoints import Endpoint, build
from octavo_gateway.http.sse import EventCutter
from octavo_gateway.queueing.hold_queue import Bounds, HoldQueue, QueuedRequest

LABELS = {"app.kubernetes.io/managed-by": "octavo", "octavo.dev/llmdeployment": "d"}


def service(name="d", namespace="ns", models="m,alias", labels=LABELS, **annotations):
    notes = {"octavo.dev/models": models} if models is not None else {}
    notes |= {f"octavo.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": notes}
    return {"metadata": metadata | {"creationTimestamp": "2026-11-21T02:00:00Z"}}


def sliced(*endpoints, name="d-1", namespace="ns", ports=(("api", 8000), ("admin", 9000))):
    metadata = {"name": name, "namespace": namespace, "labels": LABELS}
    return {"metadata": metadata, "ports": [{"name": n, "port": p} for n, p in ports], "endpoints": list(endpoints)}


def pod(address="10.0.0.1", name="d-abc", **conditions):
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


def only(table):
    (deployment,) = table.deployments.values()
    return deployment


def test_a_deployment_with_a_pod():
    found = only(build([service(hold="true", cold_start_seconds="42.5")], [sliced(pod(ready=True, serving=True))]))
    assert (found.namespace, found.name, found.models, found.hold) == ("ns", "d", ("m", "alias"), True)
    assert (found.cold_start, found.created) == (42.5, 1795226400)
    assert found.endpoints == (Endpoint("d-abc", "http://10.0.0.1:8000", "http://10.0.0.1:9000"),)


def test_who_gets_no_requests():
    for conditions in (
        {"ready": False, "serving": False, "terminating": False},
        {"ready": False, "serving": True, "terminating": True},
        {"ready": True, "serving": False},  # a Service with publishNotReadyAddresses
        {"ready": True, "serving": True, "terminating": True},
        {"ready": False},
    ):
        assert not only(build([service()], [sliced(pod(**conditions))])).endpoints[0].ready, conditions
    assert only(build([service()], [sliced(pod())])).endpoints[0].ready  # unknown reads as ready


def test_two_services_of_one_deployment_are_one_list_of_pods():
    both = [service(), service(name="d-pods", models=None)]
    slices = [
        sliced(pod(ready=True, serving=True), name="d-1", ports=[("api", 8000)]),
        sliced(pod(ready=True, serving=False), pod("10.0.0.2", "d-def", serving=True), name="d-pods-1"),
    ]
    first, second = only(build(both, slices)).endpoints
    assert (first.admin_url, first.ready) == ("http://10.0.0.1:9000", False)
    assert (second.name, second.ready) == ("d-def", True)


def test_objects_that_are_not_ours():
    stranger = service(labels={"app.kubernetes.io/managed-by": "octavo"})
    assert build([stranger, service(models=None)], [sliced(pod(), ports=[("http", 80)])]).deployments == {}


def test_slices_of_another_namespace_do_not_mix():
    assert only(build([service()], [sliced(pod(), namespace="other")])).endpoints == ()


def test_a_name_claimed_twice_goes_to_the_first_and_is_reported():
    table = build([service(namespace="b"), service(namespace="a")], [])
    assert table.find("m").namespace == "a"
    assert table.find("b/d").namespace == "b"
    assert table.conflicts == ("m: a/d and b/d", "alias: a/d and b/d")


def test_nonsense_in_annotations_has_defaults():
    for value in ("soon", "nan", "-1", "inf"):
        assert only(build([service(models=" , ", cold_start_seconds=value)], [])).cold_start == 30.0
    assert only(build([service(models=" , ")], [])).models == ("d",)


def test_why_a_model_cannot_start_is_a_word():
    assert only(build([service(cannot_start="ModelNotFound")], [])).stuck == "ModelNotFound"
    assert only(build([service(cannot_start="<b>no</b> /root")], [])).stuck == "Unknown"
    assert only(build([service()], [])).stuck == ""


def test_ipv6():
    assert only(build([service()], [sliced(pod("fd00::1"))])).endpoints[0].url == "http://[fd00::1]:8000"


@settings(max_examples=scaled(40))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 9)), max_size=60))
def test_the_hold_queue_of_one_tenant_is_in_order_bounded_and_adds_up(steps):
    queue: HoldQueue[int] = HoldQueue(Bounds(requests=8, size=100))
    held: list[QueuedRequest[int]] = []
    for offer, size, which in steps:
        if offer:
            ticket = QueuedRequest(size, size // 4, 0.0, None)
            fits = len(held) < 8 and sum(t.size for t in held) + size <= 100
            assert queue.offer(ticket) == fits
            held += [ticket] * fits
        elif held:
            gone = held.pop(which % len(held))
            queue.remove(gone)
            queue.remove(gone)
        assert queue.head(0.0) is (held[0] if held else None)
        assert (len(queue), queue.size) == (len(held), sum(t.size for t in held))
        assert queue.tokens == sum(t.tokens for t in held)


@settings(max_examples=scaled(40))
@given(
    st.lists(st.sampled_from([b"data: a\n\n", b"data: b", b"\n", b"\r\n", b"\r\n\r\n", b": c\n\n", b"x"]), max_size=20)
)
def test_cut_events_are_the_bytes_that_came(chunks):
    cutter = EventCutter()
    out = [cutter.feed(chunk) for chunk in chunks]
    for whole in out:
        assert not whole or whole.endswith((b"\n\n", b"\r\n\r\n"))
    assert b"".join(out) + cutter.rest() == b"".join(chunks)


def test_the_pods_of_a_canary_and_its_share():
    both = [service(canary_percent="20", canary_step="abc-0"), service(name="d-canary", models=None)]
    canary = sliced(pod("10.0.0.2", "d-canary-x"), name="d-canary-1")
    canary["metadata"]["labels"] = {**LABELS, "octavo.dev/track": "canary"}
    for order in (1, -1):
        slices = [sliced(pod(), pod("10.0.0.2", "d-canary-x")), canary][::order]
        found = only(build(both, slices))
        assert (found.canary_percent, found.canary_step) == (20, "abc-0")
        assert {endpoint.name: endpoint.canary for endpoint in found.endpoints} == {"d-abc": False, "d-canary-x": True}


@given(text=st.one_of(st.text(max_size=4), st.integers(-200, 200).map(str)))
def test_a_share_that_is_none_gives_nothing(text):
    percent = only(build([service(canary_percent=text)], [])).canary_percent
    assert percent == (int(text) if text in map(str, range(101)) else 0) or text.isdecimal()
    assert 0 <= percent <= 100
