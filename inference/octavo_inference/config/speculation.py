"""Settings of speculation that contradict each other."""

from __future__ import annotations

from octavo_inference.common.errors import SettingsError
from octavo_inference.config.engine import EngineSettings


def require_consistent(settings: EngineSettings) -> None:
    """Check the settings of speculation before anything is downloaded or loaded. Raises `SettingsError`."""
    method, model = settings.speculation, settings.speculation_model
    if method == "draft" and model is None:
        raise SettingsError(
            "speculation draft needs a smaller model of the same family: set speculation_model, or use ngram",
            "speculation_model",
        )
    if method != "draft" and model is not None:
        raise SettingsError(
            f"speculation_model {model} is for speculation draft, and speculation is {method}: leave it out, or set "
            "speculation to draft",
            "speculation_model",
        )
    if method != "ngram" and settings.speculation_recent_tokens:
        raise SettingsError(
            f"speculation_recent_tokens {settings.speculation_recent_tokens} is for speculation ngram, and speculation "
            f"is {method}: leave it out, or set speculation to ngram",
            "speculation_recent_tokens",
        )
