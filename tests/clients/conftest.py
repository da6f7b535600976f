"""A server, and a gateway with two replicas; both serve the built-in model as `m`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.integration.api.conftest import Running, Start, start
from tests.integration.gateway.conftest import StartGateway, start_gateway

__all__ = ["start", "start_gateway"]

MODEL = "m"


@pytest.fixture(scope="module")
def replicas(start: Start) -> list[Running]:
    """Two servers."""
    return [start("--served-model-name", MODEL, "--max-model-len", "4096") for _ in range(2)]


@pytest.fixture(scope="module")
def address_of(replicas: list[Running], start_gateway: StartGateway) -> Callable[[str], str]:
    """The address of `server` or `gateway`."""
    server = str(replicas[0].api.base_url).rstrip("/")
    pods = [f"http://127.0.0.1:{replica.api.base_url.port}|{replica.admin.base_url.port}" for replica in replicas]
    return {"server": server, "gateway": start_gateway(pods=pods).url}.__getitem__
