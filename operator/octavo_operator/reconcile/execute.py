"""Carrying out a plan, action by action. Killed anywhere, the next pass finds what is left to do."""

from __future__ import annotations

from collections.abc import Iterable

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import CHILDREN, PODS
from octavo_operator.reconcile.plan import Action, Apply, Delete


async def execute(client: KubeClient, owner: LLMDeployment, actions: Iterable[Action]) -> None:
    """Do all actions in order. The first that fails ends it."""
    for action in actions:
        if isinstance(action, Apply):
            await client.apply(CHILDREN[action.body["kind"]], action.body)
        elif isinstance(action, Delete):
            await client.delete(CHILDREN[action.kind], owner.namespace, action.name, action.uid)
        else:
            await client.annotate(PODS, owner.namespace, action.pod, action.annotations)
