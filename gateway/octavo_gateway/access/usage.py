"""What an answer cost in tokens, read from its bytes without decoding them. Pure.

Looking for the text is safe: inside a JSON string a quote is escaped, so what a model writes never looks like it.
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
    """Tokens of one request: `prompt` as estimated until the answer says, `output` as counted events until then.

    `sent`: a replica took it up. What none took up cost nothing. `cached` is what the answer says came from a prefix
    cache, None until it does.
    """

    prompt: int
    output: int = 0
    sent: bool = False
    told: bool = False
    cached: int | None = None

    @property
    def total(self) -> int:
        """Prompt and output."""
        return self.prompt + self.output if self.sent else 0

    def left(self, output: int) -> None:
        """The client went before a whole answer could say what it cost: about `output` tokens of it were generated."""
        if not self.told:
            self.sent, self.output = True, output

    def read(self, data: bytes) -> None:
        """Take the numbers over where `data`, whole events or a whole answer, holds them."""
        start = data.rfind(_USAGE)
        if start < 0:
            return
        prompt, output = _PROMPT.search(data, start), _OUTPUT.search(data, start)
        if prompt:
            self.prompt, self.output, self.told = int(prompt[1]), int(output[1]) if output else 0, True
            if cached := _CACHED.search(data, start):
                self.cached = int(cached[1])

    def events(self, data: bytes) -> int:
        """Count the events in `data` as tokens, while the answer has not told; how many there were."""
        count = data.count(b"\n\n")
        if not self.told:
            self.output += count
            self.read(data)
        return count
