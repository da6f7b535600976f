"""The vocabulary of a request, shared by the API process, the engine and the offline `LLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from octavo_inference.config.cache_policy import PolicyName
from octavo_inference.config.engine import PoolingName

FinishReason = Literal["stop", "length", "abort", "error"]

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
# Sequences of `bad_words`, and tokens in all of them together.
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 2048
MAX_LOGPROB_TOKEN_IDS = 128
# Log-probabilities of one prompt, over all its tokens: with `prompt_logprobs` k a token has k + 1 of them.
MAX_PROMPT_LOGPROBS = 1 << 18
# Ten levels equal a hundred seconds of waiting (`core.request_queue`), which bounds the advantage of a request.
MAX_PRIORITY = 10
MAX_TIMEOUT = 86400.0
REFUSED = "refused"
"""`Output.stop_reason` of a request that can never be served."""
DEADLINE = "deadline"
"""`Output.stop_reason` of a request whose deadline passed."""
NO_ADAPTER = "no_adapter"
"""`Output.stop_reason` of a request whose adapter cannot be used."""
ADAPTER_UNUSABLE = "its adapter cannot be used now; the server's log says why"
ENGINE_GONE = "engine_gone"
"""`Output.stop_reason` of a request whose engine has ended; its error is a sentence for clients."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and stop parameters. Defaults are those of the OpenAI API; names are vLLM's.

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps all tokens. With `seed`, a choice is a function of (seed, position,
    index) alone, independent of the rest of the batch; None draws a seed per request. `stop` are strings, matched in
    the decoded text; `stop_token_ids` are matched in the tokens. `max_tokens` None means up to the model's limit.
    `logprobs` is how many alternatives to report per token (0: only the chosen one), None for none at all. They are of
    the model's own distribution, before penalties, bias, bans and temperature (vLLM's `raw_logprobs`).

    `logit_bias` adds a bias from -100 to 100 to the logits of ids. Only `allowed_token_ids` may be sampled if there are
    any. No sequence of `bad_words` is completed: its last token is banned wherever the generated text ends with the
    tokens before it; the prompt does not count. An answer ends with "stop" where these rules leave no token.
    `logprob_token_ids` reports exactly these ids for each token, in this order, instead of the most likely ones.
    `prompt_logprobs` k reports every prompt token and its k best alternatives; None for none. A prompt with it is
    computed as a whole, without prefix cache hits.

    `skip_special_tokens` false shows control tokens in the text. `include_stop_str_in_output` keeps the stop string, or
    the text of the stop token, at the end of the text.
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
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Accept lists where the fields are tuples, a single string as `stop`, and a mapping as `logit_bias`."""
        stop: object = self.stop
        if not isinstance(stop, tuple):
            msgspec.structs.force_setattr(self, "stop", (stop,) if isinstance(stop, str) else tuple(self.stop))
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            given: object = getattr(self, name)
            if not isinstance(given, tuple):
                msgspec.structs.force_setattr(self, name, tuple(getattr(self, name)))
        bias: object = self.logit_bias
        if not isinstance(bias, tuple):
            pairs = bias.items() if isinstance(bias, Mapping) else self.logit_bias
            msgspec.structs.force_setattr(self, "logit_bias", tuple((token, value) for token, value in pairs))
        words: object = self.bad_words
        if not isinstance(words, tuple) or not all(isinstance(word, tuple) for word in words):
            msgspec.structs.force_setattr(self, "bad_words", tuple(tuple(word) for word in self.bad_words))

    @property
    def reports_logprobs(self) -> bool:
        """True if the outputs have log-probabilities of the generated tokens."""
        return self.logprobs is not None or len(self.logprob_token_ids) > 0


class Guidance(msgspec.Struct, frozen=True, kw_only=True):
    """Constraints on the tokens of an answer.

    `grammar` is one of llguidance: Lark text, or its JSON; empty for none. It applies to the tokens behind the first
    occurrence of the ids `after` in the answer: the end of thinking. Without `after`, it applies from the first token.
    `thinking_budget` is the most tokens before `after`, which then follows by force; None sets no bound.
    """

    grammar: str = ""
    after: tuple[int, ...] = ()
    thinking_budget: int | None = None

    @property
    def constrains(self) -> bool:
        """True if it can rule out a token."""
        return bool(self.grammar) or self.thinking_budget is not None


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """One prompt for the engine. `tokens` is the prompt; `salt` separates the prefix caches of tenants.

    `priority`: higher starts first, see `request_queue`. `tenant` is the unit of fair queueing among requests of equal
    priority. `cache_policy` selects how long the prefix cache keeps its blocks; None is the engine's default. `timeout`
    is a limit in seconds; at its end the request returns the tokens it has. `id` is unique; `request_id` is the id from
    the client or gateway, for log lines only.

    With `pooling`, nothing is generated: the only output has an embedding, pooled from the final hidden states of the
    prompt, and `sampling` has no effect. `second_text` is the index of the first token of the second text, if the
    prompt is a pair of texts; 0 for others. `adapter` is the key of the adapter to use, "" for the model itself; `ends`
    are ids that end its answers, besides the model's.
    """

    id: str
    tokens: list[int]
    sampling: SamplingParams = SamplingParams()
    priority: int = 0
    salt: str = ""
    tenant: str = ""
    cache_policy: PolicyName | None = None
    timeout: float | None = None
    request_id: str = ""
    pooling: PoolingName | None = None
    second_text: int = 0
    guidance: Guidance | None = None
    adapter: str = ""
    ends: tuple[int, ...] = ()


class OfferAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="offer_adapter"):
    """Read the adapter in the folder `path`: requests name it by `key`, which no other adapter ever has."""

    key: str
    path: str


class WithdrawAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="withdraw_adapter"):
    """Forget an adapter after the last of its requests. None follow but those that were on their way."""

    key: str


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Client disconnected or stop string found: free rows and blocks before the next step.

    `index` selects one of the request's n sequences; None means all of them.
    """

    id: str
    index: int | None = None


class ResetCache(msgspec.Struct, frozen=True, tag="reset_cache"):
    """Reset the prefix cache: requests after this message match nothing computed before it."""


class SleepEngine(msgspec.Struct, frozen=True, tag="sleep"):
    """Release weights and KV pool. Sent while no sequence is open; nothing but `WakeEngine` may follow."""


class WakeEngine(msgspec.Struct, frozen=True, tag="wake"):
    """Load weights and KV pool again, with the sizes from before."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities (natural) of one token and of its alternatives, most likely first.

    With `SamplingParams.logprob_token_ids` the alternatives are these ids in the order of the request.
    """

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
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One entry per prompt token, None for the first; on the first output of index 0 if requested."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or string that ended it, or `DEADLINE`; None for end-of-sequence and length."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; final once the first token is out."""
    queued: float = 0.0
    """Seconds from the arrival of the request to the start of its computation; only with the first token."""
    error: str | None = None
    """Message for the user if finish_reason is "error"."""
    embedding: bytes | None = None
    """The pooled vector of a request with `pooling`: float32, little-endian, not normalized.

    Of a model that scores pairs, the score alone.
    """
