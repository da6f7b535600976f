"""Gateway and server know the same priorities."""

from octavo_gateway.access import api_keys
from octavo_inference.core import request


def test_the_highest_priority_is_the_same() -> None:
    assert api_keys.MAX_PRIORITY == request.MAX_PRIORITY
