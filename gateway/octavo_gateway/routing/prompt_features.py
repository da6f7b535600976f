"""What routing needs of a request, from the text of its body: length, prefix keys, session. Pure.

The text is that of the JSON, as it was sent: a client writes the turns of a conversation the same way every time, so
the text of the next turn begins with that of this one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from hashlib import blake2b

from octavo_gateway.routing.decaying_stats import DecayingRatio
from octavo_gateway.routing.prefix_chain import COARSE, chain, pieces, reach, root

# What bytes per token a text may have; beyond it the answer's count is not believed.
LEAST_BYTES, MOST_BYTES = 0.5, 16.0
# Longer values of the session header name no session.
MAX_SESSION = 256
_ANSWER = re.compile(rb'"role"\s*:\s*"assistant"')


@dataclass(frozen=True, slots=True)
class Prompt:
    """About `tokens` tokens in `size` bytes. `keys` are empty where no prefix is looked for, `session` without one.

    `conversation` names its first turn; `answered` bytes come before the last answer in it.
    """

    tokens: int
    size: int
    keys: tuple[bytes, ...] = ()
    _: KW_ONLY
    conversation: bytes = b""
    answered: int = 0
    session: bytes = b""


NO_PROMPT = Prompt(1, 0)


def bytes_per_token() -> DecayingRatio:
    """For one model, four until something else is learned."""
    return DecayingRatio(4.0 * 256, 256, 1e6)


def prefix_keys(text: bytes, deployment: str, tenant: str, salt: bytes) -> tuple[bytes, ...]:
    """The chain of a prompt's text. Pods keep tenants apart, and within one what requests salt differently."""
    return chain(root(deployment, tenant, salt.decode("utf-8", "replace")), text)


def turns(text: bytes, keys: Sequence[bytes]) -> tuple[bytes, int]:
    """A name for the first turn of a conversation, the same in every later turn, and the bytes before its last answer.

    Only what is outside of strings looks like a role: inside of them quotes are escaped.
    """
    first = _ANSWER.search(text)
    end = text.rfind(b"}", 0, first.start()) + 1 if first else len(text)
    answered = text.rfind(first[0]) if first else 0
    whole = min(pieces(end), len(keys))
    rest = text[reach(whole) : min(end, reach(whole) + COARSE)]
    return blake2b((keys[whole - 1] if whole else b"") + rest, digest_size=16).digest(), answered


def session_key(value: str | None) -> bytes:
    """A session by the value of its header: of fixed length, and nothing that can be read from memory."""
    if not value or len(value) > MAX_SESSION:
        return b""
    return blake2b(value.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def learn(ratio: DecayingRatio, size: int, tokens: int) -> None:
    """Take an answer's count of the tokens of a prompt of `size` bytes, if it can be true."""
    if size > 0 and size / MOST_BYTES <= tokens <= size / LEAST_BYTES:
        ratio.add(size, tokens)
