"""The speculator that settings ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from octavo_inference.common.errors import SettingsError
from octavo_inference.core.built import Built
from octavo_inference.core.speculation.calibration import token_curve
from octavo_inference.core.speculation.draft_model import DraftModel
from octavo_inference.core.speculation.expected_times import ExpectedTimes
from octavo_inference.core.speculation.proposers import NgramProposer, Proposer
from octavo_inference.core.speculation.recent_outputs import RecentOutputs
from octavo_inference.core.speculation.speculator import Speculator
from octavo_protocol.engine_settings import EngineSettings

_SHORTEST = 2
"""Tokens that have to match before a guess: after one alone, nearly every guess is wrong."""

REST = 16
"""Steps between two attempts, of a backend that plans ahead: an attempt waits for the step in flight."""


def speculator_for(settings: EngineSettings, built: Built, clock: Callable[[], float]) -> Speculator | None:
    """What guesses tokens; None without speculation. Raises `SettingsError` for a model that cannot."""
    if settings.speculation == "none":
        return None
    if built.config.task != "generate":
        raise SettingsError(
            f"speculation is for models that generate text; this one has the task {built.config.task}", "speculation"
        )
    backend = built.backend
    if backend.state_slots:
        raise SettingsError(
            "speculation: this model has state layers, whose states cannot go back to before a wrong guess; use none",
            "speculation",
        )
    # A backend that runs ahead keeps a row table of its own.
    ahead = backend.steps_ahead > 0
    return Speculator(
        _proposer(settings, built.draft),
        settings.speculation_tokens,
        times=_times(settings, built, clock),
        adjusted=not ahead,
        rest=REST if ahead else 0,
    )


def _proposer(settings: EngineSettings, draft: DraftModel | None) -> Proposer:
    if draft is not None:
        return draft
    recent = RecentOutputs(settings.speculation_recent_tokens) if settings.speculation_recent_tokens else None
    return NgramProposer(_SHORTEST, recent)


def _times(settings: EngineSettings, built: Built, clock: Callable[[], float]) -> ExpectedTimes:
    """The measured times of steps, before the first request."""
    rows, longest = built.sizes.max_running, built.sizes.max_model_len
    tokens = min(built.sizes.max_batched_tokens, max(rows, built.max_samples))
    measured = partial(token_curve, rows=rows, max_model_len=longest, clock=clock)
    model = measured(built.backend, tokens=tokens, most=settings.speculation_tokens)
    if built.draft is None:
        return ExpectedTimes(model)
    return ExpectedTimes(model, measured(built.draft.backend, tokens=rows, most=0))
