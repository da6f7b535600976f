"""Executes a plan, action by action. It may be interrupted anywhere: the next pass plans what is left."""

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
    """Execute all actions in order; stop at the first failure."""
    for action in actions:
        if isinstance(action, Apply):
            await _apply(client, action.body)
        elif isinstance(action, Delete):
            await client.delete(CHILDREN[action.kind], owner.namespace, action.name, action.uid)
        else:
            await client.annotate(PODS, owner.namespace, action.pod, action.annotations)


async def _apply(client: KubeClient, body: Json) -> None:
    """Server-side apply, with a fallback for lists in which someone changed an entry's key.

    Lists merge by key: a Service port that someone renumbered is kept next to ours, has the same name, and the API
    server refuses both. A merge patch replaces the live lists by ours; then apply works again. The patch removes the
    hash annotation: interrupted in between, the next pass applies again.
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
