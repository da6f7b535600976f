"""A kill of the operator at every write to the API server: its successor comes to the same end as if nothing happened.

Here the operator is killed between any two writes, all in one life of the resource. `make kill-points` runs one life
for every kill, before and after each write, and writes docs/evidence/kill-points.md.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.integration.operator.world import World, difference

from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import LLMDEPLOYMENTS, NETWORK_POLICIES, SERVICES

Json = dict[str, Any]
Step = Callable[[World], Awaitable[None]]
MakeWorld = Callable[[], Awaitable[World]]

# The file to write the table to.
TABLE = os.environ.get("OCTAVO_KILL_POINTS", "")
HEAD = """# Kill points

The operator is killed before and after each of its writes to the API server; a write that is refused has no after.
There is one kill in each life of a resource. Then the operator starts again, and everything is compared with a life
without a kill. Written by `make kill-points`.

| what happens | writes | kills | came to the same end |
|---|---|---|---|
"""
BUILTIN = {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 4}


class Scenario(NamedTuple):
    """`change` is what happens to an LLMDeployment that `before` has prepared and that has come to rest.

    `step`: writes without which a process gets nowhere.
    """

    change: Step
    before: Step
    step: int = 1


async def serving(world: World) -> None:
    await world.spec(replicas=1)
    await world.settle()


async def three(world: World) -> None:
    await world.spec(replicas=3)
    await world.settle()


async def nothing(_: World) -> None: ...


async def suspended(world: World) -> None:
    await world.spec(suspend=True)
    await world.settle()


async def asleep(world: World) -> None:
    world.wanted = 0
    await world.spec(autoscaling=BUILTIN)
    await world.settle()


async def in_the_way(world: World) -> None:
    """Another's Service has the name."""
    body = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}}
    await world.kube.create(SERVICES, {**body, "metadata": {"name": world.key.name, "namespace": world.key.namespace}})
    await world.spec()
    await world.settle()


async def wake(world: World) -> None:
    world.wanted = 2


async def out_of_the_way(world: World) -> None:
    await drop(world, SERVICES)


async def drop(world: World, resource: Any) -> None:
    body = await world.kube.get(resource, *world.key_parts)
    assert body is not None
    await world.kube.delete(resource, *world.key_parts, body["metadata"]["uid"])


async def renumber(world: World) -> None:
    """Someone edits a port and deletes a policy."""
    service = await world.kube.get(SERVICES, *world.key_parts)
    assert service is not None
    service["spec"]["ports"][0]["port"] = 81
    await world.kube.replace(SERVICES, service)
    await drop(world, NETWORK_POLICIES)


SCENARIOS = {
    "create": Scenario(lambda world: world.spec(), nothing),
    "change that rolls the pods, with new settings": Scenario(lambda w: w.spec(engine={"threads": 1}), serving),
    "scale up, 1 to 3": Scenario(lambda w: w.spec(replicas=3), serving),
    "scale down in two phases, 3 to 1": Scenario(lambda w: w.spec(replicas=1), three),
    "suspend": Scenario(lambda w: w.spec(suspend=True), serving),
    "resume": Scenario(lambda w: w.spec(suspend=False), suspended),
    "wake from zero by the autoscaler": Scenario(wake, asleep),
    "protections off": Scenario(
        lambda w: w.spec(availability={"podDisruptionBudget": False, "networkPolicy": False}), serving
    ),
    "repair of what others changed and deleted": Scenario(
        # The API server refuses the first write, and the second makes room for it.
        renumber,
        serving,
        step=2,
    ),
    "a stranger's Service of the name goes": Scenario(out_of_the_way, in_the_way),
    "deletion": Scenario(lambda w: drop(w, LLMDEPLOYMENTS), serving),
}


@pytest.fixture
def make_world(
    kube: KubeClient,
    connect: Callable[..., Awaitable[KubeClient]],
    make_namespace: Callable[[], Awaitable[str]],
    llmd: Callable[..., Json],
) -> MakeWorld:
    """Worlds in namespaces of their own."""

    async def make() -> World:
        body = llmd()
        return World(kube, connect, {**body, "metadata": {**body["metadata"], "namespace": await make_namespace()}})

    return make


async def run(world: World, scenario: Scenario, **kills: Any) -> Json:
    await scenario.before(world)
    await scenario.change(world)
    await world.settle(**kills)
    return await world.outcome()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_killed_after_every_single_write_it_comes_to_the_same_end(name: str, make_world: MakeWorld) -> None:
    quiet, killed = await make_world(), await make_world()
    wanted = await run(quiet, SCENARIOS[name])
    step = SCENARIOS[name].step
    # Every process writes once, and dies at the next write.
    came = await run(killed, SCENARIOS[name], again=True, OCTAVO_FAILPOINTS=f"kube.write:raise@{step + 1}")
    # An Event that a kill has swallowed is not made up for.
    writes = [write for write in quiet.writes if not write.endswith("/events")]
    assert killed.kills >= (len(writes) - 2) // step, "all writes but the first came after a kill"
    assert came == wanted, difference(wanted, came)


if TABLE:  # Minutes of kills: `make kill-points` alone asks for them.

    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("name", SCENARIOS)
    async def test_killed_once_anywhere_it_comes_to_the_same_end(name: str, make_world: MakeWorld) -> None:
        quiet = await make_world()
        wanted = await run(quiet, SCENARIOS[name])
        writes = len(quiet.writes)
        points = [f"kube.write:raise@{k}" for k in range(1, writes + 1)]
        points += [f"kube.written:raise@{k}" for k in range(1, quiet.accepted + 1)]
        for point in points:
            killed = await make_world()
            came = await run(killed, SCENARIOS[name], OCTAVO_FAILPOINTS=point)
            assert killed.kills == 1, point
            assert came == wanted, f"killed at {point}:\n{difference(wanted, came)}"
        note(f"| {name} | {writes} | {len(points)} | {len(points)} |\n", afresh=name == next(iter(SCENARIOS)))


def note(row: str, *, afresh: bool) -> None:
    """A row of the table."""
    text = HEAD if afresh else Path(TABLE).read_text(encoding="utf-8")
    Path(TABLE).write_text(text + row, encoding="utf-8")
