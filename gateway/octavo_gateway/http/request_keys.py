"""Keys of the values that the gateway attaches to a client's request."""

from __future__ import annotations

from aiohttp import web

from octavo_gateway.access.api_keys import ApiKey

ID = web.RequestKey("id", str)
"""The request id."""
MODEL = web.RequestKey("model", str)
"""The label of the model; missing until the model is known."""
ROUTE = web.RequestKey("route", str)
"""The template of the route, of requests that replicas answer."""
ENTRY = web.RequestKey("entry", ApiKey)
"""The caller."""
