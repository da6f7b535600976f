"""Extracts the features that routing needs from a request's body: length, prefix keys, session. Pure.

The text is the JSON as the client sent it. A client writes the turns of a conversation the same way every time, so the
text of the next turn begins with the text of this one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from hashlib import blake2b

from octavo_gateway.routing.decaying_stats import DecayingRatio
from octavo_gateway.routing.prefix_chain import COARSE, chain, pieces, reach, root

# Plausible bytes per token of a text; outside this range the answer's token count is ignored.
LEAST_BYTES, MOST_BYTES = 0.5, 16.0
# A longer value of the session header counts as no session.
MAX_SESSION = 256
_ANSWER = re.compile(rb'"role"\s*:\s*"assistant"')


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of about `tokens` tokens in `size` bytes.

    `keys` is empty if the strategy uses no prefixes, `session` if the request has none. `conversation` names the first
    turn. `answered`: bytes before the last answer in the prompt. `affinity`: equal for requests that the client wants
    on one replica.
    """

    tokens: int
    size: int
    keys: tuple[bytes, ...] = ()
    _: KW_ONLY
    conversation: bytes = b""
    answered: int = 0
    session: bytes = b""
    affinity: bytes = b""


NO_PROMPT = Prompt(1, 0)


def bytes_per_token() -> DecayingRatio:
    """A model's bytes per token, four until measured."""
    return DecayingRatio(4.0 * 256, 256, 1e6)


def prefix_keys(text: bytes, deployment: str, tenant: str, salt: bytes) -> tuple[bytes, ...]:
    """The key chain of a prompt's text. Pods separate their caches by tenant, and within a tenant by salt."""
    return chain(root(deployment, tenant, salt.decode("utf-8", "replace")), text)


def turns(text: bytes, keys: Sequence[bytes]) -> tuple[bytes, int]:
    """The name of a conversation's first turn, equal in all later turns, and the bytes before its last answer.

    The pattern matches a role only outside of strings, because quotes inside of strings are escaped.
    """
    first = _ANSWER.search(text)
    end = text.rfind(b"}", 0, first.start()) + 1 if first else len(text)
    answered = text.rfind(first[0]) if first else 0
    whole = min(pieces(end), len(keys))
    rest = text[reach(whole) : min(end, reach(whole) + COARSE)]
    return blake2b((keys[whole - 1] if whole else b"") + rest, digest_size=16).digest(), answered


def affinity_key(cache_key: bytes, deployment: str, tenant: str) -> bytes:
    """Digest of a client's `prompt_cache_key`; empty without one. Two tenants' keys have nothing in common."""
    return blake2b(root(deployment, tenant) + cache_key, digest_size=16).digest() if cache_key else b""


def session_key(value: str | None) -> bytes:
    """Digest of the session header's value: of fixed length, and memory does not reveal the value."""
    if not value or len(value) > MAX_SESSION:
        return b""
    return blake2b(value.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def learn(ratio: DecayingRatio, size: int, tokens: int) -> None:
    """Add an answer's token count for a prompt of `size` bytes, if it is plausible."""
    if size > 0 and size / MOST_BYTES <= tokens <= size / LEAST_BYTES:
        ratio.add(size, tokens)
