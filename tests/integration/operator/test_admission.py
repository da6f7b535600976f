"""What any resource that the API server takes leads to: objects that it takes too, where `restricted` is enforced."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from tests.unit.operator.random_specs import specs

from octavo_operator.api.resource import parse
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import RefusedError
from octavo_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    LLMDEPLOYMENTS,
    PODS,
    SERVICE_ACCOUNTS,
    Resource,
)
from octavo_operator.resources import adapter_job, config, deployment, model_job
from octavo_operator.resources.common import Installation

Json = dict[str, Any]
Make = Callable[..., Json]
INSTALLATION = Installation("octavo-server:1", "octavo-server-cpu:1", "octavo-system")
EXAMPLES = 24
# Rules between blocks name only `spec`: these blocks are what they are about.
_BETWEEN_BLOCKS = (["engine"], ["resources"], ["probes"], ["cache", "type"])


def samples(count: int) -> list[Json]:
    """Always the same random specs: the largest of many, because most are nearly empty."""
    found: list[Json] = []

    @settings(
        max_examples=4 * count,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(specs())
    def collect(spec: Json) -> None:
        found.append(spec)

    collect()
    return sorted(found, key=lambda spec: len(json.dumps(spec)))[-count:]


async def dry_run(kube: KubeClient, resource: Resource, body: Json) -> Json:
    return await kube._call("POST", resource.path(body["metadata"]["namespace"]), {"dryRun": "All"}, body)


def without_refused(spec: Json, message: str, *, blocks: bool) -> Json:
    """The spec without what the answer names: fields of the blocks it is about, or those blocks as a whole."""
    found = re.findall(r"spec((?:\.[A-Za-z]+)*)(?:\[[^]]*\][^:]*)?: (Invalid|Duplicate|Required)", message)
    assert found, message
    # Where something needed was taken away before, what needs it goes too.
    ways = [(path.split(".")[1:], reason) for path, reason in found]
    paths = [way[:-1] if reason == "Required" else way for way, reason in ways]
    named = set(re.findall(r"[A-Za-z]+", message.split(" is invalid: ")[1]))
    for *way, last in (block for path in paths for block in ([path] if path else _BETWEEN_BLOCKS)):
        place = spec
        for name in way:
            place = place.get(name, {})
        if blocks or not isinstance(place.get(last), dict) or not _without(place[last], named - {last}):
            place.pop(last, None)
    return {"model": {"uri": "oci://registry.local/m:1"}, **spec}  # the one block that must be there


def _without(block: Json, named: set[str]) -> bool:
    """Take named values out of a block; whether there were any."""
    gone = [name for name, value in block.items() if name in named and not isinstance(value, dict)]
    for name in gone:
        del block[name]
    below = [_without(value, named) for value in block.values() if isinstance(value, dict)]
    return bool(gone) or any(below)


async def admitted(kube: KubeClient, llmd: Make, spec: Json) -> Json:
    """As much of a random spec as the rules let through, with the defaults."""
    refused = ""
    for attempt in range(20):
        try:
            return await dry_run(kube, LLMDEPLOYMENTS, {**llmd(), "spec": spec})
        except RefusedError as error:
            refused = error.message
            spec = without_refused(spec, refused, blocks=attempt > 4)
    raise AssertionError(f"{refused}: {spec}")


async def test_pods_of_any_admitted_resource_are_admitted(kube: KubeClient, llmd: Make, namespace: str) -> None:
    head = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tiny", "namespace": namespace}}
    await kube.create(SERVICE_ACCOUNTS, head)
    sizes: list[int] = []
    for sample in samples(EXAMPLES):
        body = await admitted(kube, llmd, sample)
        body["metadata"]["uid"] = "u"
        owner = parse(body)
        settings_map = config.config_map(owner)
        await dry_run(kube, CONFIG_MAPS, {**settings_map, "metadata": {"name": "c", "namespace": namespace}})
        job = model_job.job(owner, INSTALLATION, model_job.Pins())
        looks = [job, *(adapter_job.job(owner, INSTALLATION, adapter) for adapter in owner.spec.model.adapters[:1])]
        for look in looks:
            await dry_run(kube, JOBS, {**look, "metadata": {"name": "j", "namespace": namespace}})
        server = deployment.deployment(
            owner, deployment.pod_template(owner, INSTALLATION, "c"), 1, {"type": "Recreate"}, 600
        )
        await dry_run(kube, DEPLOYMENTS, {**server, "metadata": {"name": "d", "namespace": namespace}})
        for template in (server["spec"]["template"], *(look["spec"]["template"] for look in looks)):
            # Classes would have to exist: the API server looks them up for a pod.
            spec = {k: v for k, v in template["spec"].items() if k not in ("priorityClassName", "runtimeClassName")}
            metadata = {**template["metadata"], "name": "p", "namespace": namespace}
            await dry_run(kube, PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        sizes.append(len(json.dumps(body["spec"])))
    # Specs that lost everything to refusals would prove little; the defaults alone have less.
    assert sum(size > 1000 for size in sizes) > EXAMPLES / 2
