"""The error for a part of a request that no grammar can be made of."""

from __future__ import annotations

from octavo_inference.common.errors import RequestError


def refusal(param: str, problem: str) -> RequestError:
    """An error that names the field, for people and as its `field`."""
    return RequestError(f"{param}: {problem.rstrip('.')}.", param)
