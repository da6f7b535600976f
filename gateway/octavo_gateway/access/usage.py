"""Counts the tokens of one request: estimated until its answer reports them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_gateway.api.answer_usage import MARKS, ReportedUsage, in_answer, in_events
from octavo_protocol.routes import UsageForm


@dataclass(slots=True, eq=False)
class TokenUsage:
    """Tokens of one request: until the answer reports its usage, `prompt` is an estimate and `output` counts events.

    `sent`: a replica accepted the request; otherwise it costs nothing. `told`: the answer has reported its output.
    `cached`: reported prompt tokens from a prefix cache, None until reported. `form`: the form of the answer's usage.
    `answer_id`: id of the stored response that answers, "" if unknown.
    """

    prompt: int
    output: int = 0
    sent: bool = False
    told: bool = False
    cached: int | None = None
    form: UsageForm = UsageForm.CHAT
    answer_id: str = ""

    @property
    def total(self) -> int:
        """Prompt and output tokens."""
        return self.prompt + self.output if self.sent else 0

    def left(self, output: int) -> None:
        """The client left before the answer reported its usage: about `output` tokens were generated."""
        if not self.told:
            self.sent, self.output = True, output

    def assume(self, output: float) -> None:
        """The answer goes on after its request: without a report of its usage it has at least so many tokens."""
        if not self.told:
            self.output = max(self.output, round(output))

    def read(self, data: bytes) -> None:
        """Read the usage of a whole answer, if it contains one."""
        if (found := in_answer(self.form, data)) is not None:
            self._take(found)

    def events(self, data: bytes) -> int:
        """Count the events in `data` as tokens until the usage is reported; returns their number."""
        if self.form is UsageForm.NONE:
            return 0
        count = data.count(MARKS[self.form].token)
        if not self.told:
            self.output += count
        # With OpenAI's `continuous_usage_stats` every chunk reports the usage so far.
        for found in in_events(self.form, data):
            self._take(found)
        return count

    def _take(self, found: ReportedUsage) -> None:
        self.answer_id = self.answer_id or found.answer_id
        if found.prompt is not None:
            self.prompt = found.prompt
            self.cached = self.cached if found.cached is None else found.cached
        if found.output is not None:
            self.output, self.told = found.output, True
