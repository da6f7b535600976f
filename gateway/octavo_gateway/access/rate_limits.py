"""Rate limits of a key: requests and tokens per minute, concurrent requests. Pure; times are passed in, in seconds.

A limit per minute is a token bucket that holds one minute's amount: any window of t minutes admits at most
limit x (t + 1). The length of an answer is known only at its end and charged then. A level below zero is a debt: no
request is admitted until it is paid. So a request larger than the whole bucket waits for a full bucket, and is not
refused each time.

Gateways share a limit (`limit_gossip`). Each subtracts the amounts that all of them took. Until the next message of the
others it may take only its own part of the remainder (`take_part`). With `alive` of `all` gateways in contact they
share `alive / all` of the limit: an isolated gateway keeps its own part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["requests", "tokens", "concurrent"]

# Retry-After of the concurrency limit, in seconds: when an answer will end is unknown.
CONCURRENT_RETRY = 1.0


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Limits of a key: `requests` and `tokens` per minute, `concurrent` requests at a time. None: no limit."""

    requests: int | None = None
    tokens: int | None = None
    concurrent: int | None = None


NO_LIMITS = RateLimits()


@dataclass(frozen=True, slots=True)
class LimitReached:
    """The limit that is reached, and the estimated seconds until it is not."""

    kind: Kind
    limit: int
    retry_after: float


@dataclass(slots=True)
class TokenBucket:
    """Token bucket of one limit per minute, shared by all gateways.

    `level`: the remainder for the gateways in contact. `part`: the amount of it that this gateway may take before the
    next message of the others. `share`: the part of the limit for the gateways in contact. `aside`: the remainder that
    is reserved for the silent gateways since they became silent. `taken`: the total that this gateway has taken.
    """

    limit: int
    level: float
    at: float
    part: float = float("inf")
    share: float = 1.0
    taken: float = 0.0
    aside: float = 0.0

    @property
    def left(self) -> float:
        """The remainder for all gateways, silent ones included."""
        return self.level + self.aside

    def refill(self, now: float) -> None:
        """Refill the bucket up to `now`."""
        most = self.limit * self.share
        self.level = min(most, self.level + max(0.0, now - self.at) * most / 60)
        self.at = max(self.at, now)

    def wait(self, amount: float) -> float:
        """Seconds until `amount`, or a full bucket if that is less, can be taken; 0 if it can be taken now."""
        missing = min(amount, self.limit * self.share) - self.level
        if missing > 1e-9:
            return missing * 60 / (self.limit * self.share)
        return 0.0 if self.part > 0 else 1.0

    def take(self, amount: float) -> None:
        """Take `amount`; a negative amount is given back."""
        self.level -= amount
        self.part -= amount
        self.taken += amount

    def take_part(self, alive: int, of: int, now: float) -> None:
        """Start a new part, after the messages of the others: `alive` of `of` gateways are in contact."""
        self.refill(now)
        before, self.share = self.share, alive / of
        if self.share < before:
            # The silent gateways took an unknown amount since their last message: at most their parts.
            kept = min(self.level * self.share / before, max(0.0, self.part) * alive)
            moved = max(0.0, self.level - kept)
        elif before < 1:
            moved = -self.aside * (self.share - before) / (1 - before)
        else:
            moved = 0.0
        self.level, self.aside = self.level - moved, self.aside + moved
        self.part = self.level / alive if of > 1 else float("inf")


@dataclass(slots=True)
class Slots:
    """Concurrent requests of one key: `mine` at this gateway, `others` at the others by their last messages."""

    limit: int
    mine: int = 0
    others: int = 0
    part: float = float("inf")
    share: float = 1.0

    def free(self) -> bool:
        """True if one more request may start."""
        return self.mine + self.others < max(1.0, self.limit * self.share) and self.part > 0

    def take_part(self, alive: int, of: int) -> None:
        """Start a new part, after the messages of the others: `alive` of `of` gateways are in contact."""
        self.share = alive / of
        self.part = (self.limit * self.share - self.mine - self.others) / alive if of > 1 else float("inf")


@dataclass(slots=True, eq=False)
class KeyUsage:
    """The state of one key's limits. `open`: its open requests, counted without a concurrency limit too."""

    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    slots: Slots | None = None
    open: int = 0

    def enter(self, tokens: int, now: float) -> LimitReached | None:
        """Admit a request of about `tokens` prompt tokens, or return the limit that it reached."""
        if self.slots and not self.slots.free():
            return LimitReached("concurrent", self.slots.limit, CONCURRENT_RETRY)
        refused: LimitReached | None = None
        for kind, bucket, amount in self._buckets(tokens):
            bucket.refill(now)
            wait = bucket.wait(amount)
            if wait > 0 and (refused is None or wait > refused.retry_after):
                refused = LimitReached(kind, bucket.limit, wait)
        if refused:
            return refused
        for _, bucket, amount in self._buckets(tokens):
            bucket.take(amount)
        if self.slots:
            self.slots.mine += 1
            self.slots.part -= 1
        self.open += 1
        return None

    def leave(self, more: int) -> None:
        """The request has ended; it took `more` tokens than it was admitted with."""
        if self.tokens:
            self.tokens.take(more)
        if self.slots:
            self.slots.mine -= 1
            self.slots.part += 1
        self.open -= 1

    def limit_by(self, limits: RateLimits, now: float) -> None:
        """Adopt new limits; the amounts taken stay taken."""
        self.requests = _bucket(self.requests, limits.requests, now)
        self.tokens = _bucket(self.tokens, limits.tokens, now)
        if limits.concurrent is None:
            self.slots = None
        elif self.slots:
            self.slots.limit = limits.concurrent
        else:
            self.slots = Slots(limits.concurrent, mine=self.open)

    def take_part(self, alive: int, of: int, now: float) -> None:
        """Start a new part of every limit."""
        for bucket in (self.requests, self.tokens):
            if bucket:
                bucket.take_part(alive, of, now)
        if self.slots:
            self.slots.take_part(alive, of)

    def _buckets(self, tokens: int) -> list[tuple[Kind, TokenBucket, int]]:
        found: list[tuple[Kind, TokenBucket, int]] = []
        if self.requests:
            found.append(("requests", self.requests, 1))
        if self.tokens:
            found.append(("tokens", self.tokens, tokens))
        return found


def _bucket(before: TokenBucket | None, limit: int | None, now: float) -> TokenBucket | None:
    if limit is None:
        return None
    if before is None:
        return TokenBucket(limit, float(limit), now)
    if before.limit != limit:
        before.refill(now)
        before.level = min(before.level, limit * before.share)
        before.aside = min(before.aside, limit * (1 - before.share))
        before.limit = limit
    return before


@dataclass(slots=True, eq=False)
class Accounts:
    """The accounts of all keys, by `ApiKey.account`."""

    known: dict[str, KeyUsage] = field(default_factory=dict)

    def of(self, name: str, limits: RateLimits, now: float) -> KeyUsage:
        """The account of a key, made at its first request. `limits`: those in the current key file."""
        account = self.known.get(name)
        if account is None:
            account = self.known[name] = KeyUsage()
            account.limit_by(limits, now)
        return account

    def limit_by(self, limits: dict[str, RateLimits], now: float) -> None:
        """Adopt the limits of a key file: accounts of deleted keys are dropped.

        Keys with limits have accounts from the start, so that messages of other gateways can be applied to them.
        """
        limited = (name for name, limit in limits.items() if limit != NO_LIMITS and name not in self.known)
        self.known = {name: account for name, account in self.known.items() if name in limits}
        self.known |= {name: KeyUsage() for name in limited}
        for name, account in self.known.items():
            account.limit_by(limits[name], now)
