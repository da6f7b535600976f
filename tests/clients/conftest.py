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
    urls = [str(replica.api.base_url).rstrip("/") for replica in replicas]
    gateway = start_gateway(pods=[url.removeprefix("http://") for url in urls])
    return {"server": urls[0], "gateway": gateway.url}.__getitem__
