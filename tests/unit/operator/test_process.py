"""The parts around the passes: HTTP server, watches, client errors, failpoints, command line, rights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import kopf
import pytest
from aiohttp.test_utils import TestClient, TestServer
from kopf._cogs.structs.references import Resource as KopfResource

from octavo_operator import __main__ as program
from octavo_operator.api.resource import Key
from octavo_operator.app import watches
from octavo_operator.app.health import ProcessState, application
from octavo_operator.app.leader import Timing
from octavo_operator.app.watch_health import WatchHealth
from octavo_operator.kube import errors, permissions
from octavo_operator.kube.resources import CHILDREN, DEPLOYMENTS, LLMDEPLOYMENTS, PODS
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.reconcile.version_tracker import GONE, ObjectChange


class Process:
    """What the HTTP server asks."""

    def __init__(self) -> None:
        self.trouble, self.lead, self.known = "", True, {Key("models", "tiny"): 0}
        self.metrics = OperatorMetrics()

    def answers(self) -> ProcessState:
        return ProcessState(lambda: self.trouble, lambda: self.trouble, lambda: self.lead, self.known.get, self.metrics)


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
async def http(process: Process) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(application(process.answers()))) as client:
        yield client


async def test_health_says_why_not(http: TestClient[Any, Any], process: Process) -> None:
    assert (await http.get("/healthz")).status == 200
    process.trouble = "no resync for 900 s"
    for path in ("/healthz", "/readyz"):
        answer = await http.get(path)
        assert (answer.status, await answer.text()) == (503, "no resync for 900 s")


async def test_a_wake_reaches_the_leader_alone(http: TestClient[Any, Any], process: Process) -> None:
    wake = {"namespace": "models", "name": "tiny"}
    answer = await http.post("/v1/octavo/wake", json=wake)
    assert (answer.status, await answer.json()) == (202, {"replicas": 0})
    process.lead = False
    answer = await http.post("/v1/octavo/wake", json=wake)
    assert (answer.status, await answer.read()) == (421, b"")


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b'{"namespace": "models"}', 400), (b'{"namespace": "models", "name": "x"}', 404)],
)
async def test_a_wrong_wake_is_refused(body: bytes, status: int, http: TestClient[Any, Any]) -> None:
    assert (await http.post("/v1/octavo/wake", data=body)).status == status


async def test_a_huge_wake_is_not_read(http: TestClient[Any, Any]) -> None:
    assert (await http.post("/v1/octavo/wake", data=b" " * 100_000)).status == 413


async def test_metrics_carry_the_usual_names(http: TestClient[Any, Any], process: Process) -> None:
    process.metrics.called("GET", 200)
    process.metrics.replicas("models", "tiny", 2, 1)
    text = await (await http.get("/metrics")).text()
    for line in (
        'rest_client_requests_total{code="200",method="GET"} 1.0',
        'octavo_desired_replicas{name="tiny",namespace="models"} 2.0',
        "leader_election_master_status 0.0",
        "workqueue_adds_total",
    ):
        assert line in text
    process.metrics.forget("models", "tiny")
    assert "octavo_desired_replicas{" not in await (await http.get("/metrics")).text()


def test_watches_are_filtered_by_the_api_server() -> None:
    # kopf matches nothing, silently, for some spellings of a key: ask it as its watcher does.
    selectors = watches._settings().watching.label_selectors
    for child in (*CHILDREN.values(), PODS):
        resource = KopfResource(
            child.group, child.version, child.plural, kind=child.kind, namespaced=True, preferred=True
        )
        assert selectors.collect(resource) == ["app.kubernetes.io/managed-by=octavo"]
    own = LLMDEPLOYMENTS
    mine = KopfResource(own.group, own.version, own.plural, kind=own.kind, namespaced=True, preferred=True)
    assert selectors.collect(mine) == []


async def test_every_event_tells_which_version_of_which_object_of_a_resource() -> None:
    seen: list[ObjectChange] = []

    async def connect() -> Any:
        pytest.fail("an event needs no connection")

    registry = watches._registry(seen.append, connect, WatchHealth(1, lambda: None, lambda: None))
    functions = {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}
    assert set(functions) == {"llmdeployments", *(child.plural for child in CHILDREN.values()), "pods"}
    await functions["llmdeployments"](
        namespace="models", name="tiny", type="DELETED", meta={"uid": "a", "resourceVersion": "9"}
    )
    pod = {"labels": {"octavo.dev/llmdeployment": "tiny"}, "uid": "b", "resourceVersion": "7"}
    await functions["pods"](namespace="models", meta=pod, type="ADDED")
    assert seen == [ObjectChange(Key("models", "tiny"), "a", GONE), ObjectChange(Key("models", "tiny"), "b", 7)]


def test_kopf_writes_nothing() -> None:
    settings = watches._settings()
    assert (settings.posting.enabled, settings.scanning.disabled, settings.peering.standalone) == (False, True, True)
    registry = watches._registry(lambda _: None, SimpleNamespace, WatchHealth(1, lambda: None, lambda: None))  # type: ignore[arg-type]
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    assert not registry._indexing.get_all_handlers()
    assert isinstance(registry, kopf.OperatorRegistry)


async def test_a_user_without_a_name_may_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    async def connect() -> Any:
        await asyncio.sleep(3600)

    monkeypatch.setattr("getpass.getuser", nameless)
    stop = asyncio.Event()
    stop.set()
    async with asyncio.timeout(30):
        await watches.watch(lambda _: None, connect, ["models"], stop, WatchHealth(1, lambda: None, lambda: None))


def test_delays_between_attempts_never_end() -> None:
    delays = iter(watches.JitteredForever())
    drawn = [next(delays) for _ in range(100)]
    assert max(drawn) <= 45.0
    assert drawn[0] < 1.0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, errors.NotFoundError),
        (409, errors.ConflictError),
        (422, errors.RefusedError),
        (403, errors.RefusedError),
        (429, errors.TransientError),
        (500, errors.TransientError),
    ],
)
def test_errors_say_what_the_server_said(status: int, kind: type[errors.KubeError]) -> None:
    error = errors.from_response(status, json.dumps({"message": "no"}).encode(), "GET /x")
    assert type(error) is kind
    assert str(error) == f"GET /x: no ({status})"
    assert "<html>" in str(errors.from_response(status, b"<html>", "GET /x"))


def test_objects_of_a_kind_that_is_a_moment_old_are_sent_again() -> None:
    refused = {"message": 'serviceaccounts "a" is forbidden: cannot find RESTMapping for Kind LLMDeployment'}
    assert isinstance(errors.from_response(403, json.dumps(refused).encode(), "PATCH /x"), errors.TransientError)
    assert isinstance(errors.from_response(403, b'{"message": "no"}', "PATCH /x"), errors.RefusedError)


@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [(429, "7", 7.0), (429, "", 1.0), (429, "0", 1.0), (503, "3", 3.0), (503, "", 0.0), (429, "999999", 60.0)],
)
def test_the_server_says_when_to_come_back(status: int, header: str, seconds: float) -> None:
    error = errors.from_response(status, b"{}", "GET /x", header)
    assert errors.retry_after(error) == error.retry_after == seconds
    assert errors.retry_after(ValueError("x")) == 0.0


def test_command_line() -> None:
    images = ["--server-image", "a", "--server-cpu-image", "b"]
    options, level, style = program.parse(
        [*images, "--namespace-scope", "x, y", "--gateway-url", "http://g"], {"POD_NAMESPACE": "ns", "POD_NAME": "pod"}
    )
    assert (options.scope, options.installation.namespace, options.lease_namespace) == (("x", "y"), "ns", "ns")
    assert (options.identity, options.port, level, style) == ("pod", 8081, "info", "json")
    assert options.lease == Timing(15.0, 10.0, 2.0)
    quick, *_ = program.parse([*images, "--lease-seconds", "3"], {})
    assert quick.lease == Timing(3, 2.0, 0.4)
    with pytest.raises(SystemExit):
        program.parse([], {})


def test_addresses() -> None:
    assert DEPLOYMENTS.path("ns", "x", "status") == "/apis/apps/v1/namespaces/ns/deployments/x/status"
    assert PODS.path(None) == "/api/v1/pods"


def test_rights_are_named_one_by_one() -> None:
    rules = [rule for group in permissions.rules().values() for rule in group]
    assert not any("*" in value for rule in rules for value in (*rule["verbs"], *rule["resources"], *rule["apiGroups"]))
    assert not any("secrets" in rule["resources"] for rule in rules)
