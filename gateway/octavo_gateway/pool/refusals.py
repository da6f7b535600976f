"""What a client is answered whose request gets no replica: status, text, code, and when to try again."""

from __future__ import annotations

from octavo_gateway.discovery.endpoints import Deployment
from octavo_gateway.openai import ApiError


def unavailable(deployment: Deployment, why: str, retry_after: float) -> ApiError:
    """503 with the seconds until it is likely that one more request is taken."""
    return ApiError(
        503,
        f"The model {deployment.models[0]!r} cannot answer now: {why}. Try again in a moment.",
        code="model_unavailable",
        retry_after=retry_after,
    )


def without_replica(deployment: Deployment, retry_after: float) -> ApiError:
    """503 where waiting for a replica makes no sense; without a time where only people end that."""
    model = deployment.models[0]
    if deployment.suspended:
        return ApiError(503, f"The model {model!r} is suspended.", code="model_suspended")
    if deployment.stuck:
        why = f"The model {model!r} cannot start: {deployment.stuck}. Its operators have to act."
        return ApiError(503, why, code="model_failed", headers={"x-should-retry": "false"})
    return unavailable(deployment, "no replica is ready", retry_after)


def queue_full(deployment: Deployment, held: int, retry_after: float) -> ApiError:
    """503: as many requests wait as may."""
    return unavailable(deployment, f"{held} requests are already held", retry_after)


def share_used(deployment: Deployment, held: int, retry_after: float) -> ApiError:
    """429: of the requests that wait, so many are of the same key that others come first."""
    return ApiError(
        429,
        f"This key has its share of the {held} requests that wait for {deployment.models[0]!r}.",
        code="rate_limit_exceeded",
        retry_after=retry_after,
    )


def removed(deployment: Deployment) -> ApiError:
    """503: the LLMDeployment is gone."""
    return ApiError(503, f"The model {deployment.models[0]!r} was removed.", code="model_removed")
