"""The vocabulary of a request, shared by the API process, the engine and the offline `LLM`."""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo_inference.config.cache_policy import PolicyName

FinishReason = Literal["stop", "length", "abort", "error"]

MAX_LOGPROBS = 20
# Ten levels equal a hundred seconds of waiting (`core.request_queue`), which bounds the advantage of a request.
MAX_PRIORITY = 10
MAX_TIMEOUT = 86400.0
REFUSED = "refused"
"""`Output.stop_reason` of a request that can never be served."""
DEADLINE = "deadline"
"""`Output.stop_reason` of a request whose deadline passed."""
ENGINE_GONE = "engine_gone"
"""`Output.stop_reason` of a request whose engine has ended; its error is a sentence for clients."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and stop parameters. Defaults are those of the OpenAI API; names are vLLM's.

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps all tokens. With `seed`, a choice is a function of (seed, position,
    index) alone, independent of the rest of the batch; None draws a seed per request. `stop` are strings, matched in
    the decoded text; `stop_token_ids` are matched in the tokens. `max_tokens` None means up to the model's limit.
    `logprobs` is how many alternatives to report per token (0: only the chosen one), None for none at all.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Accept a single string or any sequence as `stop` and `stop_token_ids`, such as `stop="END"` or `[2]`."""
        stop: object = self.stop
        if not isinstance(stop, tuple):
            msgspec.structs.force_setattr(self, "stop", (stop,) if isinstance(stop, str) else tuple(self.stop))
        if not isinstance(self.stop_token_ids, tuple):
            msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids))


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """One prompt for the engine. `tokens` is the prompt; `salt` separates the prefix caches of tenants.

    `priority`: higher starts first, see `request_queue`. `tenant` is the unit of fair queueing among requests of equal
    priority. `cache_policy` selects how long the prefix cache keeps its blocks; None is the engine's default. `timeout`
    is a limit in seconds; at its end the request returns the tokens it has. `id` is unique; `request_id` is the id from
    the client or gateway, for log lines only.
    """

    id: str
    tokens: list[int]
    sampling: SamplingParams
    priority: int = 0
    salt: str = ""
    tenant: str = ""
    cache_policy: PolicyName | None = None
    timeout: float | None = None
    request_id: str = ""


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Client disconnected or stop string found: free rows and blocks before the next step.

    `index` selects one of the request's n sequences; None means all of them.
    """

    id: str
    index: int | None = None


class ResetCache(msgspec.Struct, frozen=True, tag="reset_cache"):
    """Reset the prefix cache: requests after this message match nothing computed before it."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities (natural) of one generated token and of its top alternatives, most likely first."""

    logprob: float
    rank: int
    """Rank of the chosen token among all tokens, 1 = most likely."""
    top_ids: list[int]
    top_logprobs: list[float]


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Output of a step for one sequence: usually one token."""

    id: str
    index: int
    """Index among the request's n sequences."""
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or string that ended it, or `DEADLINE`; None for end-of-sequence and length."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; final once the first token is out."""
    error: str | None = None
    """Message for the user if finish_reason is "error"."""
