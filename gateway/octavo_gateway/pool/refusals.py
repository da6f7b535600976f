"""Errors for requests that get no replica: status, message, code, and Retry-After."""

from __future__ import annotations

from octavo_gateway.api.errors import ApiError
from octavo_gateway.discovery.endpoints import Deployment


def unavailable(model: str, why: str, retry_after: float) -> ApiError:
    """Error 503 with the estimated seconds until one more request is accepted."""
    return ApiError(
        503,
        f"The model {model!r} cannot answer now: {why}. Try again in a moment.",
        code="model_unavailable",
        retry_after=retry_after,
    )


def without_replica(deployment: Deployment, model: str, retry_after: float) -> ApiError:
    """Error 503 if waiting for a replica is pointless; without Retry-After if a person has to act first."""
    if deployment.suspended:
        return ApiError(503, f"The model {model!r} is suspended.", code="model_suspended")
    if deployment.stuck:
        why = f"The model {model!r} cannot start: {deployment.stuck}. Its operators have to act."
        return ApiError(503, why, code="model_failed", headers={"x-should-retry": "false"})
    return unavailable(model, "no replica is ready", retry_after)


def adapter_failed(adapter: str, failure: str) -> ApiError:
    """Error 503: no replica can use an adapter; without Retry-After, because a person has to act first."""
    why = f"The model {adapter!r} is an adapter that cannot be used: {failure.rstrip('.')}."
    return ApiError(503, why, code="model_failed", headers={"x-should-retry": "false"})


def adapter_removed(adapter: str) -> ApiError:
    """Error 503: the adapter was removed while its requests were held."""
    return ApiError(503, f"The model {adapter!r} was removed.", code="model_removed")


def queue_full(model: str, held: int, retry_after: float) -> ApiError:
    """Error 503: the queue is full."""
    return unavailable(model, f"{held} requests are already held", retry_after)


def share_used(model: str, held: int, retry_after: float) -> ApiError:
    """Error 429: the key has its share of the queue, so requests of others come first."""
    return ApiError(
        429,
        f"This key has its share of the {held} requests that wait for {model!r}.",
        code="rate_limit_exceeded",
        retry_after=retry_after,
    )


def removed(deployment: Deployment) -> ApiError:
    """Error 503: the LLMDeployment was deleted."""
    return ApiError(503, f"The model {deployment.models[0]!r} was removed.", code="model_removed")
