"""Access control: identifies the caller by key, enforces limits, and counts each request's final cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from octavo_gateway.access.api_keys import ANYBODY, ApiKey, presented_key
from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.access.rate_limits import Accounts, KeyUsage, LimitReached, TokenBucket
from octavo_gateway.access.usage import TokenUsage
from octavo_gateway.api.errors import ApiError
from octavo_gateway.metrics import GatewayMetrics
from octavo_protocol.routes import UsageForm

_UNITS = {"requests": "requests per minute", "tokens": "tokens per minute", "concurrent": "requests at a time"}


@dataclass(slots=True, eq=False)
class RequestGrant:
    """One admitted request. `estimate`: prompt tokens charged at admission; `priority`: as bounded by its key."""

    entry: ApiKey
    account: KeyUsage
    usage: TokenUsage
    estimate: int
    priority: int

    def headers(self) -> dict[str, str]:
        """The key's remaining limits, in the headers of OpenAI's API; empty without limits."""
        return rate_headers(self.account)


class AccessControl:
    """Admits requests. `keys` None: all. `clock` returns Unix seconds, `ticks` monotonic seconds."""

    def __init__(
        self, keys: KeyFile | None, metrics: GatewayMetrics, clock: Callable[[], float], ticks: Callable[[], float]
    ) -> None:
        self._keys = keys
        self._metrics = metrics
        self._clock = clock
        self._ticks = ticks
        self._generation = keys.generation if keys else 0
        self.accounts = Accounts()
        self.accounts.limit_by(keys.limits() if keys else {}, ticks())

    def identify(self, headers: Mapping[str, str]) -> ApiKey:
        """The caller of a request, by its key. Raises `ApiError` 401 without a valid key."""
        if self._keys is None:
            return ANYBODY
        key = presented_key(headers)
        if key is None:
            raise ApiError(401, "no API key: send Authorization: Bearer KEY", code="missing_api_key")
        now = self._clock()
        entry = self._keys.find(key, now)
        if self._generation != self._keys.generation:
            self._generation = self._keys.generation
            self.accounts.limit_by(self._keys.limits(), self._ticks())
        self._metrics.key_file_valid.set(self._keys.valid)
        if entry is None:
            raise ApiError(401, "the API key is not valid", code="invalid_api_key")
        if entry.expires <= now:
            raise ApiError(401, "the API key has expired", code="expired_api_key")
        return entry

    def enter(
        self, entry: ApiKey, tokens: int, priority: object = None, form: UsageForm = UsageForm.CHAT
    ) -> RequestGrant:
        """Admit a request of about `tokens` prompt tokens. Raises `ApiError` 429.

        `priority`: value in its body. `form`: of the usage in its answer.
        """
        now = self._ticks()
        account = self.accounts.of(entry.account, entry.limits, now)
        refused = account.enter(tokens, now)
        if refused:
            self._metrics.limit_hits.labels(self._metrics.key(entry.name), refused.kind).inc()
            raise _limited(refused, account)
        return RequestGrant(entry, account, TokenUsage(tokens, form=form), tokens, entry.priority_of(priority))

    def leave(self, grant: RequestGrant) -> None:
        """The request has ended: count its actual cost."""
        grant.account.leave(grant.usage.total - grant.estimate)
        if grant.entry is not ANYBODY and grant.usage.sent:
            name = self._metrics.key(grant.entry.name)
            self._metrics.key_tokens.labels(name, "prompt").inc(grant.usage.prompt)
            self._metrics.key_tokens.labels(name, "generation").inc(grant.usage.output)


def rate_headers(account: KeyUsage) -> dict[str, str]:
    """The `x-ratelimit-*` headers of an account; the levels date from the last request."""
    headers: dict[str, str] = {}
    for name, bucket in (("requests", account.requests), ("tokens", account.tokens)):
        if bucket:
            headers[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level)))
            headers[f"x-ratelimit-reset-{name}"] = _span(bucket)
    return headers


def _span(bucket: TokenBucket) -> str:
    """The time until the bucket is full, such as `1m30s` or `250ms`."""
    seconds = max(0.0, bucket.limit - bucket.level) * 60 / bucket.limit
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms"
    minutes, rest = divmod(ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _limited(refused: LimitReached, account: KeyUsage) -> ApiError:
    return ApiError(
        429,
        f"This API key's limit of {refused.limit} {_UNITS[refused.kind]} is reached.",
        code="rate_limit_exceeded",
        retry_after=refused.retry_after,
        headers=rate_headers(account),
    )
