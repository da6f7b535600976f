"""Carrying out a plan, action by action. Killed anywhere, the next pass finds what is left to do."""

from __future__ import annotations

from collections.abc import Iterable

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import NotFoundError, RefusedError
from octavo_operator.kube.resources import CHILDREN, PODS
from octavo_operator.reconcile.plan import ANNOTATION_APPLIED, Action, Apply, Delete

_UNPROCESSABLE = 422


async def execute(client: KubeClient, owner: LLMDeployment, actions: Iterable[Action]) -> None:
    """Do all actions in order. The first that fails ends it."""
    for action in actions:
        if isinstance(action, Apply):
            await _apply(client, action.body)
        elif isinstance(action, Delete):
            await client.delete(CHILDREN[action.kind], owner.namespace, action.name, action.uid)
        else:
            await client.annotate(PODS, owner.namespace, action.pod, action.annotations)


async def _apply(client: KubeClient, body: Json) -> None:
    """Server-side apply, with a way out where someone gave an entry of a list another key.

    Lists merge by key: a Service's port that someone renumbered stands beside ours, has the same name, and the API
    server refuses both. A merge patch puts our lists in place of the live ones; then apply works again. The patch takes
    the stamp off: killed in between, the next pass sees that the apply is still to come.
    """
    resource = CHILDREN[body["kind"]]
    try:
        await client.apply(resource, body)
    except RefusedError as error:
        if error.status != _UNPROCESSABLE:
            raise
        metadata = body["metadata"]
        unstamped = {**metadata.get("annotations", {}), ANNOTATION_APPLIED: None}
        try:
            await client.merge(resource, {**body, "metadata": {**metadata, "annotations": unstamped}})
        except (NotFoundError, RefusedError):
            raise error from None
        await client.apply(resource, body)
