"""Reads the token usage of an answer from its bytes, without decoding them. Pure.

The text search is safe: inside a JSON string a quote is escaped, so the output of a model cannot match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_USAGE = b'"usage":'
_PROMPT = re.compile(rb'"prompt_tokens":\s{0,8}(\d{1,9})')
_CACHED = re.compile(rb'"cached_tokens":\s{0,8}(\d{1,9})')
_OUTPUT = re.compile(rb'"completion_tokens":\s{0,8}(\d{1,9})')


@dataclass(slots=True, eq=False)
class TokenUsage:
    """Tokens of one request: until the answer reports its usage, `prompt` is an estimate and `output` counts events.

    `sent`: a replica accepted the request; otherwise it costs nothing. `told`: the answer has reported its usage.
    `cached`: reported prompt tokens from a prefix cache, None until reported.
    """

    prompt: int
    output: int = 0
    sent: bool = False
    told: bool = False
    cached: int | None = None

    @property
    def total(self) -> int:
        """Prompt and output tokens."""
        return self.prompt + self.output if self.sent else 0

    def left(self, output: int) -> None:
        """The client left before the answer reported its usage: about `output` tokens were generated."""
        if not self.told:
            self.sent, self.output = True, output

    def read(self, data: bytes) -> None:
        """Read the usage from `data`, which is whole events or a whole answer, if it contains one."""
        start = data.rfind(_USAGE)
        if start < 0:
            return
        prompt, output = _PROMPT.search(data, start), _OUTPUT.search(data, start)
        if prompt:
            self.prompt, self.output, self.told = int(prompt[1]), int(output[1]) if output else 0, True
            if cached := _CACHED.search(data, start):
                self.cached = int(cached[1])

    def events(self, data: bytes) -> int:
        """Count the events in `data` as tokens until the usage is reported; returns the number of events."""
        count = data.count(b"\n\n")
        if not self.told:
            self.output += count
            self.read(data)
        return count
