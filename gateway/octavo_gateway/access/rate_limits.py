"""How much a key may send: requests and tokens per minute, requests at a time. Pure; time comes in, in seconds.

A minute's limit is a token bucket that holds one minute's worth: in any window of t minutes at most limit x (t + 1).
What is only known at the end (how long an answer became) is paid later: a level below zero is a debt, and nothing is
let in until it is paid. So a request larger than the whole bucket waits for a full one instead of being refused for
ever.

Gateways share a limit (`limit_gossip`). Each counts down the whole of it by what all of them took, and may itself take,
until the next word of the others, only its part of what is left (`take_part`). With `alive` of `all` gateways in
contact they share `alive / all` of the limit: one that hears nobody is left with its own part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["requests", "tokens", "concurrent"]

# A slot is free when some answer ends, which nobody can tell.
CONCURRENT_RETRY = 1.0


@dataclass(frozen=True, slots=True)
class RateLimits:
    """None: no limit. `requests` and `tokens` per minute; `concurrent` requests at a time."""

    requests: int | None = None
    tokens: int | None = None
    concurrent: int | None = None


NO_LIMITS = RateLimits()


@dataclass(frozen=True, slots=True)
class LimitReached:
    """Which limit is reached, and the seconds until it is likely not."""

    kind: Kind
    limit: int
    retry_after: float


@dataclass(slots=True)
class TokenBucket:
    """`level`: what is left for all gateways; `part`: what this one may take of it before it hears of the others.

    `share` of the limit belongs to the gateways in contact; `aside` is what the silent ones may have of what was left
    when they became so. `taken`: all that this one ever took.
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
        """What is left for all gateways, silent ones included."""
        return self.level + self.aside

    def refill(self, now: float) -> None:
        """Add what came in since."""
        most = self.limit * self.share
        self.level = min(most, self.level + max(0.0, now - self.at) * most / 60)
        self.at = max(self.at, now)

    def wait(self, amount: float) -> float:
        """Seconds until `amount`, or all the bucket holds, can be taken; 0 when it can."""
        missing = min(amount, self.limit * self.share) - self.level
        if missing > 1e-9:
            return missing * 60 / (self.limit * self.share)
        return 0.0 if self.part > 0 else 1.0

    def take(self, amount: float) -> None:
        """Take, or with a negative amount give back."""
        self.level -= amount
        self.part -= amount
        self.taken += amount

    def take_part(self, alive: int, of: int, now: float) -> None:
        """A new part, after the others were heard."""
        self.refill(now)
        before, self.share = self.share, alive / of
        if self.share < before:
            # What the silent ones took of it since they were heard is not known: no more than their parts.
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
    """Requests at a time: `mine` here, `others` at the other gateways when they were last heard."""

    limit: int
    mine: int = 0
    others: int = 0
    part: float = float("inf")
    share: float = 1.0

    def free(self) -> bool:
        """Whether one more may start."""
        return self.mine + self.others < max(1.0, self.limit * self.share) and self.part > 0

    def take_part(self, alive: int, of: int) -> None:
        """A new part, after the others were heard."""
        self.share = alive / of
        self.part = (self.limit * self.share - self.mine - self.others) / alive if of > 1 else float("inf")


@dataclass(slots=True, eq=False)
class KeyUsage:
    """What one key has left. `open`: its requests under way, also without a limit of them."""

    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    slots: Slots | None = None
    open: int = 0

    def enter(self, tokens: int, now: float) -> LimitReached | None:
        """Let a request of about `tokens` prompt tokens in, or say why not."""
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
        """The request is over; it took `more` tokens than it was let in with."""
        if self.tokens:
            self.tokens.take(more)
        if self.slots:
            self.slots.mine -= 1
            self.slots.part += 1
        self.open -= 1

    def limit_by(self, limits: RateLimits, now: float) -> None:
        """Take over limits; what was taken stays taken."""
        self.requests = _bucket(self.requests, limits.requests, now)
        self.tokens = _bucket(self.tokens, limits.tokens, now)
        if limits.concurrent is None:
            self.slots = None
        elif self.slots:
            self.slots.limit = limits.concurrent
        else:
            self.slots = Slots(limits.concurrent, mine=self.open)

    def take_part(self, alive: int, of: int, now: float) -> None:
        """A new part of every limit."""
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
        """The account of a key, made when it is first seen. `limits` as the key file says now."""
        account = self.known.get(name)
        if account is None:
            account = self.known[name] = KeyUsage()
            account.limit_by(limits, now)
        return account

    def limit_by(self, limits: dict[str, RateLimits], now: float) -> None:
        """Take over a key file: accounts of keys that are gone are dropped.

        Keys with limits have accounts from the start, for what other gateways tell of them.
        """
        limited = (name for name, limit in limits.items() if limit != NO_LIMITS and name not in self.known)
        self.known = {name: account for name, account in self.known.items() if name in limits}
        self.known |= {name: KeyUsage() for name in limited}
        for name, account in self.known.items():
            account.limit_by(limits[name], now)
