"""The speculator that settings ask for."""

from __future__ import annotations

from octavo_inference.common.errors import SettingsError
from octavo_inference.core.speculation.draft_model import DraftModel
from octavo_inference.core.speculation.proposers import NgramProposer, Proposer
from octavo_inference.core.speculation.recent_outputs import RecentOutputs
from octavo_inference.core.speculation.speculator import Speculator
from octavo_protocol.engine_settings import EngineSettings

_SHORTEST = 2
"""Tokens that have to match before a guess: after one alone, nearly every guess is wrong."""


def speculator_for(
    settings: EngineSettings, draft: DraftModel | None, *, state_slots: int, task: str, steps_ahead: int
) -> Speculator | None:
    """What guesses tokens; None without speculation. Raises `SettingsError` for a model that cannot."""
    if settings.speculation_recent_tokens and settings.speculation != "ngram":
        raise SettingsError("speculation_recent_tokens is for speculation ngram", "speculation_recent_tokens")
    if settings.speculation_model and settings.speculation != "draft":
        raise SettingsError("speculation_model is for speculation draft", "speculation_model")
    if settings.speculation == "none":
        return None
    if task != "generate":
        raise SettingsError(
            f"speculation is for models that generate text; this one has the task {task}", "speculation"
        )
    if state_slots:
        raise SettingsError(
            "speculation: this model has state layers, whose states cannot go back to before a wrong guess; use none",
            "speculation",
        )
    if draft is None:
        recent = RecentOutputs(settings.speculation_recent_tokens) if settings.speculation_recent_tokens else None
        proposer: Proposer = NgramProposer(_SHORTEST, recent)
    else:
        proposer = draft
    # A backend that runs ahead keeps a row table of its own.
    return Speculator(proposer, settings.speculation_tokens, adjusted=not steps_ahead)
