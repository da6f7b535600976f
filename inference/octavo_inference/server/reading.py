"""Reads the answers of a generation into text, thinking and tool calls, and counts what the metrics show of it."""

from __future__ import annotations

from octavo_inference.answers.plan import AnswerPlan
from octavo_inference.chat_format.events import Event
from octavo_inference.server.generation import Generation
from octavo_inference.server.metrics import ServerMetrics
from octavo_inference.tokenizer.detokenizer import Delta


class Reading:
    """The answers of a generation so far; `answers` has one reader for each choice."""

    def __init__(self, plan: AnswerPlan, generation: Generation, metrics: ServerMetrics) -> None:
        self.answers = [plan.reader() for _ in range(generation.choices)]
        self._counts = generation.counts
        self._metrics = metrics
        self._thinks = plan.reasoning is not None

    def push(self, choice: int, piece: Delta) -> list[Event]:
        """The parts that a piece of a choice completes."""
        answer = self.answers[choice]
        events = answer.push(piece)
        if self._thinks:
            self._counts.reasoning = sum(answer.reasoning_tokens for answer in self.answers)
        if piece.finish_reason is not None and answer.has_failed_call:
            self._metrics.tool_parse_failures += 1
        return events


def reading_of(plan: AnswerPlan, generation: Generation, metrics: ServerMetrics) -> Reading | None:
    """How to read the answers; None if each is one text."""
    return None if plan.is_plain else Reading(plan, generation, metrics)
