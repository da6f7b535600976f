"""LLMDeployment v1alpha1, `spec.routing`: how gateways choose among the replicas."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from octavo_operator.api.base import ApiBlock, Rule


class Routing(ApiBlock):
    """Routing defines how a gateway selects a replica for a request."""

    RULES = (
        Rule(
            rule="!has(self.maxLoadPercentOfMean) || self.strategy in ['PrefixAware', 'Session']",
            message="routing.maxLoadPercentOfMean requires routing.strategy PrefixAware or Session",
            found="'routing.maxLoadPercentOfMean is %d and routing.strategy is %s, which does not use it: leave it "
            "out, or use PrefixAware or Session'.format([self.maxLoadPercentOfMean, self.strategy])",
        ),
        Rule(
            rule="!has(self.sessionHeader) || self.strategy == 'Session'",
            message="routing.sessionHeader requires routing.strategy Session",
            found="'routing.sessionHeader is ' + self.sessionHeader + ' and routing.strategy is ' + self.strategy + "
            "': leave it out, or use strategy Session'",
        ),
    )

    strategy: Literal["PrefixAware", "LeastLoad", "RoundRobin", "Session"] = Field(
        default="PrefixAware",
        description="strategy is the rule by which a gateway selects a replica for a request. PrefixAware selects the "
        "replica where the predicted time is shortest, with prefixes in its cache taken into account. LeastLoad does "
        "the same without the caches. RoundRobin selects the replicas in turn. Session sends requests with the same "
        "value of sessionHeader to one replica, and other requests as PrefixAware does. Defaults to PrefixAware.",
    )
    max_load_percent_of_mean: int | None = Field(
        default=None,
        ge=101,
        le=400,
        description="maxLoadPercentOfMean is the limit for the load of a replica, in percent of the mean load of all "
        "replicas. Load is the number of tokens in flight. Above the limit, a cached prefix or a session does not "
        "keep further requests on the replica. Requires strategy PrefixAware or Session. Must be between 101 and 400. "
        "Defaults to 125.",
    )
    session_header: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z][A-Za-z0-9-]*$",
        description="sessionHeader is the name of the request header that identifies a session. Requires strategy "
        "Session. Defaults to `x-session-id`.",
    )
