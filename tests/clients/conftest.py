"""The places where clients are tried."""

from __future__ import annotations

import pytest
from tests.clients.families.checks import Place
from tests.clients.places import gateway_place, server_place
from tests.integration.api.conftest import Start, start
from tests.integration.gateway.conftest import StartGateway, start_gateway

__all__ = ["start", "start_gateway"]


@pytest.fixture(scope="module")
def places(start: Start, start_gateway: StartGateway, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    """A server and a gateway."""
    folder = tmp_path_factory.mktemp("keys")
    return {"server": server_place(start, folder), "gateway": gateway_place(start, start_gateway, folder)}
