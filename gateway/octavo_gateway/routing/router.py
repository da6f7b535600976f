"""The router of one model: cached prompt tokens per replica, and the choice of the replica for a request. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo_gateway.routing import prompt_features
from octavo_gateway.routing.candidate import LEAST_LOAD, ROUND_ROBIN, SESSION, Candidate, Choice, Policy, RoutingRequest
from octavo_gateway.routing.decaying_stats import DecayingRatio
from octavo_gateway.routing.prefix_chain import reach
from octavo_gateway.routing.prefix_index import PrefixIndex
from octavo_gateway.routing.prompt_features import Prompt
from octavo_gateway.routing.strategies import route
from octavo_protocol.prompt import PromptBlocks


@dataclass(slots=True, eq=False)
class Router:
    """Routes the requests of one model. `turns` counts them.

    `index`: the prefix caches of all replicas of the gateway. `random` returns numbers in [0, 1).
    """

    index: PrefixIndex
    random: Callable[[], float]
    bytes_per_token: DecayingRatio = field(default_factory=prompt_features.bytes_per_token)
    turns: int = 0

    def prompt(
        self, text: bytes, strategy: str, caches: tuple[str, str, bytes], session: str | None, cache_key: bytes = b""
    ) -> Prompt:
        """The features that `strategy` needs, from a prompt's text and the session header's value.

        `caches`: model with adapter, tenant and salt. Prompts that differ in one of them share no prefix. `cache_key`:
        the client's `prompt_cache_key`, b"" without one.
        """
        key = prompt_features.session_key(session) if strategy == SESSION else b""
        keys: tuple[bytes, ...] = ()
        conversation, answered, affinity = b"", 0, b""
        if not key and strategy not in (LEAST_LOAD, ROUND_ROBIN):
            keys = prompt_features.prefix_keys(text, *caches)
            conversation, answered = prompt_features.turns(text, keys)
            affinity = prompt_features.affinity_key(cache_key, *caches[:2])
        tokens = max(1, int(len(text) / self.bytes_per_token.value))
        return Prompt(
            tokens, len(text), keys, conversation=conversation, answered=answered, session=key, affinity=affinity
        )

    def cached(self, prompt: Prompt, replicas: Sequence[str]) -> list[int]:
        """Prompt tokens that each replica has cached, as far as is known."""
        per_token = self.bytes_per_token.value
        depths = self.index.match(prompt.keys, replicas)
        return [min(prompt.tokens, int(reach(depth) / per_token)) if depth else 0 for depth in depths]

    def choose(
        self, candidates: Sequence[Candidate], prompt: Prompt, output: float, policy: Policy, adapter: str = ""
    ) -> Choice | None:
        """The replica for a request that will generate about `output` tokens; None without a candidate."""
        request = RoutingRequest(
            prompt.tokens,
            output,
            anchor=prompt.keys[0] if prompt.keys else b"",
            conversation=prompt.conversation,
            presumed=int(prompt.answered / self.bytes_per_token.value),
            session=prompt.session,
            affinity=prompt.affinity,
            turn=self.turns,
            adapter=adapter.encode(),
        )
        choice = route(candidates, request, policy, self.random)
        if choice is not None:
            self.turns += 1
        return choice

    def learn(self, replica: str, prompt: Prompt, blocks: PromptBlocks) -> None:
        """Record the blocks and the number of tokens that a replica named for a prompt's text."""
        prompt_features.learn(self.bytes_per_token, prompt.size, blocks.tokens)
        self.index.learn(replica, prompt.keys, prompt.size, blocks)
