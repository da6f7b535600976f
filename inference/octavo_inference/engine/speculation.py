"""The speculator that settings ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from octavo_inference.common.errors import SettingsError
from octavo_inference.core.backend import Backend
from octavo_inference.core.built import Built
from octavo_inference.core.speculation.calibration import token_curve
from octavo_inference.core.speculation.draft_model import DraftModel
from octavo_inference.core.speculation.expected_times import ExpectedTimes, TokenCurve
from octavo_inference.core.speculation.proposers import NgramProposer, Proposer
from octavo_inference.core.speculation.recent_outputs import RecentOutputs
from octavo_inference.core.speculation.speculator import Speculator
from octavo_inference.models.info import ModelInfo
from octavo_protocol.engine_settings import EngineSettings

_SHORTEST = 2
"""Tokens that have to match before a guess: after one alone, nearly every guess is wrong."""

REST = 16
"""Steps between two attempts, of a backend that plans ahead: an attempt waits for the step in flight."""


def speculators(settings: EngineSettings, built: Built, clock: Callable[[], float]) -> Callable[[], Speculator | None]:
    """What makes a speculator for each engine on a backend; it makes None without speculation.

    The times of steps are measured here, once. Raises `SettingsError` for a model that cannot.
    """
    if settings.speculation == "none":
        return lambda: None
    backend = built.backend
    why = refusal(built.config, backend)
    if why:
        raise SettingsError(f"speculation: {why}; use none", "speculation")
    # A backend that runs ahead keeps a row table of its own.
    ahead = backend.steps_ahead > 0
    curves = _curves(settings, built, clock)
    return lambda: Speculator(
        _proposer(settings, built.draft),
        settings.speculation_tokens,
        times=ExpectedTimes(*curves),
        adjusted=not ahead,
        rest=REST if ahead else 0,
    )


def refusal(config: ModelInfo, backend: Backend) -> str:
    """Why tokens of a model cannot be guessed; empty if they can."""
    if config.task != "generate":
        return f"it is for models that generate text; this one has the task {config.task}"
    if backend.state_slots:
        return "this model has state layers, whose states cannot go back to before a wrong guess"
    return ""


def _proposer(settings: EngineSettings, draft: DraftModel | None) -> Proposer:
    if draft is not None:
        return draft
    recent = RecentOutputs(settings.speculation_recent_tokens) if settings.speculation_recent_tokens else None
    return NgramProposer(_SHORTEST, recent)


def _curves(settings: EngineSettings, built: Built, clock: Callable[[], float]) -> tuple[TokenCurve, TokenCurve | None]:
    """The measured times of steps, of the model and of its draft model."""
    rows, longest = built.sizes.max_running, built.sizes.max_model_len
    tokens = min(built.sizes.max_batched_tokens, max(rows, built.max_samples))
    measured = partial(token_curve, rows=rows, max_model_len=longest, clock=clock)
    model = measured(built.backend, tokens=tokens, most=settings.speculation_tokens)
    if built.draft is None:
        return model, None
    return model, measured(built.draft.backend, tokens=rows, most=0)
