"""Parses models and pods given on the command line, for use without Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from octavo_gateway.discovery.endpoints import DEFAULT_POLICY, Deployment, Endpoint, ModelTable, table
from octavo_gateway.routing.candidate import Policy

NAMESPACE = "static"


class StaticError(ValueError):
    """An invalid --static-endpoints value; the message names the reason and the expected form."""


def parse(values: Iterable[str], strategy: str | None = None) -> ModelTable:
    """The table of `MODEL=URL[|ADMINPORT][,URL…]` values, routed by `strategy`. Raises `StaticError`."""
    policy = Policy(strategy) if strategy else DEFAULT_POLICY
    found: dict[str, Deployment] = {}
    for value in values:
        model, separator, urls = value.partition("=http")
        if not separator or not model:
            raise StaticError(f"--static-endpoints {value!r}: expected MODEL=http://HOST:PORT[|ADMINPORT][,http://…]")
        if model in found:
            raise StaticError(f"--static-endpoints names the model {model!r} twice; list its addresses in one value")
        endpoints = tuple(_endpoint(url) for url in f"http{urls}".split(","))
        found[model] = Deployment(NAMESPACE, model, (model,), endpoints=endpoints, policy=policy)
    return table(found.values())


def _endpoint(text: str) -> Endpoint:
    url, _, admin = text.strip().partition("|")
    parts = urlsplit(url)
    try:
        port, admin_port = parts.port, int(admin) if admin else None
    except ValueError:
        port = admin_port = None
    valid = parts.scheme == "http" and parts.hostname and port and not parts.path.strip("/") and not parts.query
    if not valid or (admin and not admin_port):
        raise StaticError(f"--static-endpoints: {text!r} is not http://HOST:PORT or http://HOST:PORT|ADMINPORT")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    admin_url = f"http://{host}:{admin_port}" if admin_port else ""
    return Endpoint(f"{host}:{port}", f"http://{host}:{port}", admin_url)
