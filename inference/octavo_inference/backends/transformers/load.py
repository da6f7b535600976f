"""Loads every decoder that transformers supports through its attention interface, from safetensors alone.

Never runs code from the model's files, never unpickles, never downloads.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from octavo_inference.checkpoints.transformers_config import ForeignConfig
from octavo_inference.common.errors import ModelError

log = logging.getLogger(__name__)

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def load_module(folder: Path, described: ForeignConfig, dtype: torch.dtype) -> Any:
    """Load the model as a torch module with all its weights, for inference.

    Raises `ModelError` when transformers has no such decoder, when it keeps state of another kind than K and V, or when
    configuration and weights disagree.
    """
    config = module_config(folder, described)
    try:
        module, report = AutoModelForCausalLM.from_pretrained(
            str(folder),
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported together with the missing ones
            **_LOCAL,
        )
    except Exception as error:
        raise _refusal(folder, described, f"transformers cannot load it: {_first_line(error)}") from error
    _check_weights(folder, report)
    return module.eval()


def module_config(folder: Path, described: ForeignConfig) -> Any:
    """The configuration of a module. Raises `ModelError` when transformers has no such decoder, or one with states."""
    name = described.architecture
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(str(folder), **_LOCAL)
    except Exception as error:
        reason = f"transformers {transformers.__version__} does not support it: {_first_line(error)}"
        raise _refusal(folder, described, reason) from error
    known = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if known is None or known.__name__ != name:
        other = "" if known is None else f" (of this kind it has {known.__name__})"
        reason = f"transformers {transformers.__version__} has no text-generating decoder of that name{other}"
        raise _refusal(folder, described, reason)
    if known._is_stateful:  # noqa: SLF001 -- transformers has no public equivalent
        reason = "it has recurrent layers (Mamba, linear attention), whose state cannot be paged"
        raise _refusal(folder, described, reason)
    return config


def _refusal(folder: Path, described: ForeignConfig, reason: str) -> ModelError:
    return ModelError(f"{folder}: {described.architecture} cannot be served: {reason}")


def _check_weights(folder: Path, report: dict[str, Any]) -> None:
    """Refuse incomplete weights: transformers initializes missing tensors with random numbers."""
    missing, mismatched = sorted(report["missing_keys"]), sorted(str(key) for key in report["mismatched_keys"])
    if missing or mismatched or report.get("error_msgs"):
        parts = [
            f"{len(names)} tensors {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for names, what in ((missing, "are missing"), (mismatched, "have other shapes"))
            if names
        ]
        raise ModelError(f"{folder}: config.json and the weights disagree: {'; '.join(parts) or report['error_msgs']}")
    unexpected = sorted(report["unexpected_keys"])
    if unexpected:
        log.warning("%s: %d tensors are not used, as in %s", folder, len(unexpected), unexpected[0])


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
