"""One request's place on one pod: what was counted when it was sent there, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo_common.virtual_token_counter import cost
from octavo_gateway.pool.replica import Replica
from octavo_gateway.routing import prompt_features
from octavo_gateway.routing.canary import CanaryStats
from octavo_gateway.routing.prompt_features import Prompt
from octavo_gateway.routing.router import Choice
from octavo_protocol.prompt import PromptError, decode_prompt

if TYPE_CHECKING:
    from octavo_gateway.pool.model_pool import ModelPool


@dataclass(slots=True, eq=False)
class Reservation:
    """One request's place on one pod.

    `uncached` prompt tokens are to be computed there, as far as is known; `output` tokens are likely to be generated,
    and `left` of them still. `marks` are the pieces of its prompt that nobody had sent there before.
    """

    backend: ModelPool
    upstream: Replica
    prompt: Prompt
    choice: Choice
    uncached: int
    asks: int
    tally: CanaryStats | None = None
    began: bool = False
    tenant: str = ""
    output: float = 0.0
    left: float = 0.0
    marks: tuple[bytes, ...] = ()

    @property
    def matched(self) -> int:
        """Prompt tokens predicted to be cached there."""
        return self.prompt.tokens - self.uncached

    @property
    def generated(self) -> int:
        """Tokens of its answer that are known of."""
        return round(self.output - self.left)

    def heard(self, header: str | None) -> None:
        """The pod took the request up; `header` says of its prompt's blocks what it was asked to say."""
        if header is None:
            return
        try:
            blocks = decode_prompt(header)
        except PromptError as error:
            self.backend.complain(self.upstream, "prompt", str(error))
            return
        prompt_features.learn(self.backend.bytes_per_token, self.prompt.size, blocks.tokens)
        self.backend.index.learn(self.upstream.endpoint.url, self.prompt.keys, self.prompt.size, blocks)

    def refused(self) -> None:
        """The pod did not compute it; what others sent there still counts."""
        self.backend.index.unsent(self.upstream.endpoint.url, self.marks)

    def unseen(self) -> None:
        """Its answer comes in one piece: how far it is, only the pod's reports tell."""
        self.upstream.unseen.add(self)

    def progress(self, tokens: float) -> None:
        """Count tokens that were generated: they are in the pod's next report."""
        done = min(self.left, float(tokens))
        self.left -= done
        self.upstream.growth -= done
        self.upstream.private += done

    def settle(self, prompt: int, output: int) -> None:
        """Tell what the request cost in the end, before it is released."""
        charged = cost(self.prompt.tokens, self.output)
        self.backend.queue.settle(self.tenant, cost(prompt, output) - charged)

    def completed(self, tokens: int) -> None:
        """Tell how long a whole answer was."""
        if tokens > 0:
            self.backend.hear_length(tokens)

    def answered(self, *, well: bool) -> None:
        """Tell what came of it, where there are two tracks to compare."""
        if self.tally is not None:
            self.tally.answered(well=well)

    def first_token(self, seconds: float) -> None:
        """Tell how long the first token of a stream took: from here on its prompt is computed."""
        self._begin()
        if self.tally is not None:
            self.tally.first_token(seconds)

    def release(self) -> None:
        """Give the place back; the next held request may have it."""
        self._begin()
        self.upstream.unseen.discard(self)
        self.upstream.growth -= self.left
        self.upstream.private -= self.uncached + self.output - self.left
        self.left = 0.0
        self.upstream.finished(self.prompt.tokens, self.uncached)
        self.backend.in_flight -= 1
        self.backend.index.finished(self.upstream.endpoint.url, self.prompt.keys, self.backend.clock())
        self.backend.pump((self.upstream,))

    def _begin(self) -> None:
        if not self.began:
            self.began = True
            self.upstream.began(self.uncached, self.asks)
