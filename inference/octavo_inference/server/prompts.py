"""Converts an HTTP request to engine requests: tenant, priority, cache salt and deadline."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest

from octavo_inference.config.cache_policy import PolicyName
from octavo_inference.core.request import MAX_PRIORITY, MAX_TIMEOUT, Guidance, Request, SamplingParams
from octavo_inference.server import gateway_headers
from octavo_inference.server.errors import invalid
from octavo_inference.server.http import REQUEST_ID, TENANT
from octavo_inference.server.service import Loaded, Service
from octavo_protocol.names import HEADER_PROMPT, HEADER_TIMEOUT


class SchedulingFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Octavo's scheduling fields, in the body of every endpoint that generates."""

    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    cache_policy: PolicyName | None = None
    cache_salt: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}\Z")] | None = None


def engine_requests(
    service: Service,
    request: HttpRequest,
    loaded: Loaded,
    body: SchedulingFields,
    name: str,
    prompts: list[list[int]],
    sampling: list[SamplingParams],
    guidance: Guidance | None = None,
) -> list[Request]:
    """The engine requests of an HTTP request. `name` must be unique; a client's request id need not be.

    `guidance` holds for the answers to all prompts.

    Prefix caches are separate per tenant, and within a tenant per `cache_salt`. Raises `ApiError` for headers that no
    gateway sends.
    """
    tenant, priority = tenant_of(service, request), body.priority
    if service.tenant_header:
        priority = gateway_headers.priority(request.headers, priority)
    seconds = timeout(request.headers.get(HEADER_TIMEOUT))
    return [
        Request(
            id=f"{name}-{number}",
            tokens=tokens,
            sampling=params,
            priority=priority or 0,
            salt=gateway_headers.salt(tenant, body.cache_salt),
            tenant=tenant,
            cache_policy=body.cache_policy,
            timeout=seconds,
            request_id=request.scope[REQUEST_ID],
            guidance=guidance,
            adapter=loaded.adapter,
            ends=loaded.ends,
        )
        for number, (tokens, params) in enumerate(zip(prompts, sampling, strict=True))
    ]


def tenant_of(service: Service, request: HttpRequest) -> str:
    """The owner of the request's API key, with the tenant that a gateway names. Raises `ApiError`."""
    tenant: str = request.scope[TENANT]
    return gateway_headers.tenant(request.headers, tenant) if service.tenant_header else tenant


async def prompt_headers(
    service: Service, request: HttpRequest, loaded: Loaded, prompts: list[Request]
) -> dict[str, str]:
    """The response header that describes a single prompt, if a gateway requests it; else no header."""
    if len(prompts) != 1 or not gateway_headers.wants_prompt(request.headers):
        return {}
    if loaded.adapter and not loaded.adapter_digest:
        return {}  # its prefixes have no keys before it is read
    [prompt] = prompts
    return {
        HEADER_PROMPT: await service.work(
            lambda: gateway_headers.prompt_header(prompt.tokens, loaded.info, prompt.salt, loaded.adapter_digest)
        )
    }


def timeout(header: str | None) -> float | None:
    """The client's timeout for a request in seconds. Raises `ApiError`."""
    if header is None:
        return None
    if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", header) is None or not 0.001 <= float(header) <= MAX_TIMEOUT:
        raise invalid(
            f"{HEADER_TIMEOUT}: {header[:64]!r} is not a time in seconds from 0.001 to {MAX_TIMEOUT:g}.", HEADER_TIMEOUT
        )
    return float(header)
