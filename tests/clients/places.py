"""Where clients are tried: a server with a key, and a gateway with keys in front of two replicas."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from tests.clients.families.checks import Place
from tests.integration.api.conftest import Running, Start
from tests.integration.gateway.conftest import StartGateway

MODEL = "m"
KEY = "secret"
FLAGS = ("--served-model-name", MODEL, "--max-model-len", "4096")


def server_place(start: Start, folder: Path) -> Place:
    """A server that asks for a key."""
    keys = folder / "server-keys"
    keys.write_text(f"{KEY}\n")
    server = start(*FLAGS, "--api-key-file", str(keys))
    return Place(_url(server), MODEL, KEY, [_admin(server)])


def gateway_place(start: Start, start_gateway: StartGateway, folder: Path) -> Place:
    """A gateway that does not hold requests for long, so that clients see what it answers without a replica."""
    keys = folder / "gateway-keys"
    entries = [{"name": "free", "key": KEY}, {"name": "limited", "key": "limited", "requestsPerMinute": 1}]
    keys.write_text(json.dumps({"keys": entries}))
    replicas = [start(*FLAGS) for _ in range(2)]
    pods = [f"{_url(replica)}|{replica.admin.base_url.port}" for replica in replicas]
    gateway = start_gateway("--api-key-file", str(keys), "--hold-timeout", "0.2", pods=pods)
    return Place(gateway.url, MODEL, KEY, [_admin(replica) for replica in replicas], "limited")


def arguments_of(place: Place) -> str:
    """The place for a script."""
    return json.dumps(asdict(place))


def clean_environment() -> dict[str, str]:
    """Nothing of Octavo's own environment, and no measurements sent to makers of libraries."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OPENAI", "ANTHROPIC"))}
    silent = {"LANGSMITH_TRACING": "false", "HAYSTACK_TELEMETRY_ENABLED": "false", "DO_NOT_TRACK": "1"}
    silent["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its own copy of a list of prices
    return kept | silent


def _url(server: Running) -> str:
    return str(server.api.base_url).rstrip("/")


def _admin(server: Running) -> str:
    return str(server.admin.base_url).rstrip("/")
