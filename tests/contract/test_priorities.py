"""Gateway and server know the same priorities."""

from octavo_gateway.access import keyring
from octavo_inference.core import request


def test_the_highest_priority_is_the_same() -> None:
    assert keyring.MAX_PRIORITY == request.MAX_PRIORITY
