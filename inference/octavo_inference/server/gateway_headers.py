"""Headers between a gateway and this server. A gateway removes them from the requests of its clients."""

from __future__ import annotations

import re

from starlette.datastructures import Headers

from octavo_inference.core.request import MAX_PRIORITY
from octavo_inference.engine.ipc import EngineInfo
from octavo_inference.server.errors import invalid
from octavo_protocol.hashing import block_hashes, root_hash
from octavo_protocol.names import HEADER_PRIORITY, HEADER_TENANT, HEADER_WANT_PROMPT
from octavo_protocol.prompt import describe, encode_prompt

_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PRIORITY = re.compile(r"-?[0-9]{1,2}")


def tenant(headers: Headers, key: str) -> str:
    """The tenant of a request: the name from the gateway, prefixed by `key`, the owner of this server's API key.

    Raises `ApiError` for a name that no gateway sends.
    """
    given = _only(headers, HEADER_TENANT)
    if given is not None and _TENANT.fullmatch(given) is None:
        raise invalid(
            f"{HEADER_TENANT}: {given[:64]!r} is not 1 to 64 letters, digits and . _ - as gateways send it.",
            HEADER_TENANT,
        )
    return "/".join(filter(None, (key, given)))


def priority(headers: Headers, asked: int | None) -> int | None:
    """The request's priority, at most the one that the gateway allows. The latter applies if the request has none.

    Raises `ApiError` for a malformed priority.
    """
    given = _only(headers, HEADER_PRIORITY)
    if given is None:
        return asked
    if _PRIORITY.fullmatch(given) is None or abs(int(given)) > MAX_PRIORITY:
        raise invalid(
            f"{HEADER_PRIORITY}: {given[:64]!r} is not a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}.",
            HEADER_PRIORITY,
        )
    return int(given) if asked is None else min(asked, int(given))


def salt(tenant: str, given: str | None) -> str:
    """The salt that separates prefix caches: the tenant, and within it the request's `cache_salt`.

    Neither ends in a slash, so no `cache_salt` of a request without a tenant equals a tenant's salt.
    """
    return f"{tenant}/{given or ''}" if tenant else given or ""


def wants_prompt(headers: Headers) -> bool:
    """True if the response should describe the blocks of the prompt."""
    return headers.get(HEADER_WANT_PROMPT) == "1"


def prompt_header(tokens: list[int], info: EngineInfo, salt: str, adapter: str = "") -> str:
    """The blocks of a prompt, encoded by `octavo_protocol.prompt`. Slow for a long prompt, which it hashes.

    `adapter`: the digest of the request's adapter.
    """
    root = root_hash(info.model_digest, adapter, salt)
    hashes = block_hashes(root, tokens, info.block_size) if info.prefix_caching else []
    return encode_prompt(describe(len(tokens), info.block_size, hashes))


def _only(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1:
        raise invalid(f"{name}: given {len(values)} times; a gateway sends it once.", name)
    return values[0] if values else None
