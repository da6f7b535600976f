"""LLMDeployment v1alpha1, `spec.routing`: how gateways choose among the replicas."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from octavo_operator.api.base import ApiBlock, Rule


class Routing(ApiBlock):
    """Which replica a gateway sends a request to."""

    RULES = (
        Rule(
            rule="!has(self.maxLoadPercentOfMean) || self.strategy in ['PrefixAware', 'Session']",
            message="routing.maxLoadPercentOfMean is for the strategies PrefixAware and Session",
            found="'routing.maxLoadPercentOfMean is %d and routing.strategy is %s, which keeps nothing on a replica: "
            "leave it out, or use PrefixAware or Session'.format([self.maxLoadPercentOfMean, self.strategy])",
        ),
        Rule(
            rule="!has(self.sessionHeader) || self.strategy == 'Session'",
            message="routing.sessionHeader is for strategy Session",
            found="'routing.sessionHeader is ' + self.sessionHeader + ' and routing.strategy is ' + self.strategy + "
            "': leave it out, or use strategy Session'",
        ),
    )

    strategy: Literal["PrefixAware", "LeastLoad", "RoundRobin", "Session"] = Field(
        default="PrefixAware",
        description="`PrefixAware`: where the request is predicted to cost least time, what is cached there included. "
        "`LeastLoad`: the same without caches. `RoundRobin`: in turn. `Session`: requests with the same value of "
        "`sessionHeader` to one replica, others as with PrefixAware.",
    )
    max_load_percent_of_mean: int | None = Field(
        default=None,
        ge=101,
        le=400,
        description="Tokens in flight at a replica, in percent of the mean over replicas, above which neither a prefix "
        "nor a session keeps requests there; 125 when not given.",
    )
    session_header: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z][A-Za-z0-9-]*$",
        description="Request header that names a session in strategy Session; `x-session-id` when not given.",
    )
