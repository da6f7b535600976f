"""Gossip of rate limits: the messages that gateways exchange, and their effect on the limits of each key. Pure.

Every gateway publishes grow-only counters of the amounts that each key has taken from it. A peer subtracts the increase
from its own level. The next message includes the increase of a lost one: no amount is lost, and none counts twice. The
first message of a peer (one of both gateways is new) has no increase: the lower of both levels applies to both.
Messages contain only hashes of names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from octavo_gateway.access.api_keys import opaque
from octavo_gateway.access.rate_limits import Accounts, KeyUsage, TokenBucket

# Seconds without a message after which a gateway is silent: just under one round. The others then leave it its part at
# once, and a message that is only late costs them nothing.
SILENT_SECONDS = 0.95
# Seconds without a message after which a gateway and its counters are dropped.
FORGOTTEN_SECONDS = 600.0
MOST_GATEWAYS = 256


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """State of one key: grow-only counters of requests and tokens, open requests, and remaining bucket levels."""

    requests: float
    tokens: float
    open: int
    requests_left: float | None = None
    tokens_left: float | None = None


NOTHING = Taken(0.0, 0.0, 0)


class GossipMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message of one gateway process: its id, and the state of each key by the hash of the key's name."""

    id: str
    keys: dict[str, Taken] = {}


@dataclass(slots=True, eq=False)
class _Peer:
    last_message: float
    keys: dict[str, Taken] = field(default_factory=dict)


class LimitGossip:
    """The gossip of one gateway with its peers. `id` is that of this process; times are monotonic seconds."""

    def __init__(self, accounts: Accounts, name: str) -> None:
        self._accounts = accounts
        self._peers: dict[str, _Peer] = {}
        self.id = name

    def message(self, now: float) -> GossipMessage:
        """The message to the peers: all keys with a limit in use."""
        keys: dict[str, Taken] = {}
        for name, account in self._accounts.known.items():
            buckets = [bucket for bucket in _buckets(account) if bucket.left < bucket.limit]
            for bucket in buckets:
                bucket.refill(now)
            used = any(bucket.left < bucket.limit for bucket in buckets)
            if used or (account.slots and account.open):
                keys[_hash(name)] = Taken(
                    account.requests.taken if account.requests else 0.0,
                    account.tokens.taken if account.tokens else 0.0,
                    account.open,
                    account.requests.left if account.requests else None,
                    account.tokens.left if account.tokens else None,
                )
        return GossipMessage(id=self.id, keys=keys)

    def receive(self, message: GossipMessage, now: float) -> None:
        """Apply the message of another gateway."""
        if message.id == self.id:
            return
        peer = self._peers.get(message.id)
        first = peer is None
        if peer is None:
            if len(self._peers) >= MOST_GATEWAYS:
                return
            peer = self._peers[message.id] = _Peer(now)
        peer.last_message = now
        accounts = {_hash(name): account for name, account in self._accounts.known.items()}
        for key in message.keys.keys() & accounts.keys():
            taken = message.keys[key]
            _charge(accounts[key], None if first else peer.keys.get(key, NOTHING), taken, now)
            peer.keys[key] = taken
        for key in peer.keys.keys() - message.keys.keys():
            before = peer.keys[key]
            peer.keys[key] = Taken(before.requests, before.tokens, 0)

    def share_out(self, others: Collection[str | None], now: float) -> tuple[int, int]:
        """Divide every limit into new parts; returns the number of gateways in contact and in all, this one included.

        `others`: ids of the other gateways that should exist; None for one that has never sent a message.
        """
        self._peers = {name: peer for name, peer in self._peers.items() if now - peer.last_message < FORGOTTEN_SECONDS}
        alive_peers = [
            peer for name, peer in self._peers.items() if name in others and now - peer.last_message < SILENT_SECONDS
        ]
        alive, all_of_them = 1 + len(alive_peers), 1 + len(others)
        for name, account in self._accounts.known.items():
            if account.slots:
                account.slots.others = sum(peer.keys.get(_hash(name), NOTHING).open for peer in alive_peers)
            account.take_part(alive, all_of_them, now)
        return alive, all_of_them


def _charge(account: KeyUsage, before: Taken | None, taken: Taken, now: float) -> None:
    """Subtract the tokens another gateway took since `before`; None for its first message."""
    known = before or NOTHING
    for bucket, more, left in (
        (account.requests, taken.requests - known.requests, taken.requests_left),
        (account.tokens, taken.tokens - known.tokens, taken.tokens_left),
    ):
        if bucket is None:
            continue
        bucket.refill(now)
        if before is not None:
            bucket.level -= more
        elif left is not None and left < bucket.left:
            less = min(bucket.aside, bucket.left - left)
            bucket.aside -= less
            bucket.level = left - bucket.aside


@lru_cache(maxsize=16384)
def _hash(name: str) -> str:
    return opaque("account", name)


def _buckets(account: KeyUsage) -> list[TokenBucket]:
    return [bucket for bucket in (account.requests, account.tokens) if bucket]
