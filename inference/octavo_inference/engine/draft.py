"""Loads a draft model and builds its backend, beside that of the model whose answers it guesses."""

from __future__ import annotations

import logging
from collections.abc import Callable

from octavo_inference.checkpoints.transformers_config import ForeignConfig
from octavo_inference.common.errors import ModelError, SettingsError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.backend import Backend
from octavo_inference.core.kv_cache_sizing import CacheSizes
from octavo_inference.core.speculation.draft_model import DraftModel
from octavo_inference.model_loader import ForeignModel, LoadedModel, TextModel, load_model
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.info import ModelInfo
from octavo_inference.models.layer_groups import pool_layout

log = logging.getLogger(__name__)

_FIELD = "speculation_model"
# Ids that only one of both models has: some checkpoints pad their vocabulary, or add tokens for tools.
_MOST_UNSHARED = 1024
# Tokens of prompts that it computes in a step while answers wait for it. A launch of guesses has one of each answer.
_CATCH_UP = 256


def load_draft(settings: EngineSettings, model: LoadedModel) -> LoadedModel | None:
    """The draft model of the settings, which fits the model; None without. Raises `SettingsError` if it does not fit.

    `ModelError` if it cannot be loaded.
    """
    if settings.speculation != "draft":
        return None
    name = settings.speculation_model or ""
    subject, draft = f"speculation_model {name}", load_model(name)
    if isinstance(draft, ForeignModel):
        raise _foreign(subject, draft.config)
    require_pair(subject, model.text, draft.text)
    return draft


def require_pair(subject: str, model: TextModel, draft: TextModel) -> None:
    """The draft model has to fit the model. Reads no weights. Raises `SettingsError` that begins with `subject`."""
    if isinstance(draft.config, ForeignConfig):
        raise _foreign(subject, draft.config)
    _require_layers(subject, draft.config)
    if not isinstance(model.config, ModelConfig):
        return  # the engine refuses speculation with another backend, whatever the draft model is
    if not any(group.is_full for group in pool_layout(model.config).groups):
        raise SettingsError(
            "speculation draft: all layers of this model have windows, and their blocks do not keep the whole text; "
            "use ngram",
            "speculation",
        )
    require_vocabulary(subject, model, draft)


def draft_model(
    draft: LoadedModel, model: LoadedModel, sizes: CacheSizes, create: Callable[[LoadedModel], Backend]
) -> DraftModel:
    """The draft model on a backend that `create` makes, with the block numbers of the model's pool.

    Raises `SettingsError` if the backend cannot compute it.
    """
    groups = pool_layout(model.config).groups
    sizes_of = (each.text.tokenizer.get_vocab_size(with_added_tokens=True) for each in (draft, model))
    shared = min(draft.config.vocab, model.config.vocab, *sizes_of)
    if draft.config.max_positions < sizes.max_model_len:
        log.warning(
            "the draft model was trained for %d positions: it guesses worse beyond, up to max_model_len %d",
            draft.config.max_positions,
            sizes.max_model_len,
        )
    try:
        backend = create(draft)
    except (ModelError, SettingsError) as error:  # it must not be taken for one of the model
        raise SettingsError(f"speculation_model {draft.text.name}: {error}; choose another", _FIELD) from error
    return DraftModel(
        backend,
        group=next(number for number, group in enumerate(groups) if group.is_full),
        tokens=min(max(_CATCH_UP, 2 * sizes.max_running), sizes.max_batched_tokens),
        vocab=shared,
    )


def require_vocabulary(subject: str, model: TextModel, draft: TextModel) -> None:
    """Both models have to mean the same by a token id. Raises `SettingsError` otherwise."""
    mine, theirs = (each.tokenizer.get_vocab(with_added_tokens=True) for each in (model, draft))
    common = min(max(mine.values()), max(theirs.values())) + 1
    alone = abs(len(mine) - len(theirs))
    differ = [token for token in sorted(theirs, key=theirs.__getitem__) if theirs[token] < common]
    differ = [token for token in differ if mine.get(token) != theirs[token]]
    if differ or alone > _MOST_UNSHARED:
        seen = f"{differ[0]!r} and {len(differ) - 1} more" if differ else f"{alone} that only one has"
        raise SettingsError(
            f"{subject} has another vocabulary than the model ({len(theirs)} tokens, {len(mine)} there; different: "
            f"{seen}); choose a model of the same family",
            _FIELD,
        )


def _foreign(subject: str, config: ForeignConfig) -> SettingsError:
    return SettingsError(
        f"{subject}: Octavo's own kernels do not compute it ({config.missing}); choose another", _FIELD
    )


def _require_layers(subject: str, config: ModelInfo) -> None:
    """Its K and V have to lie in one table, and nothing else may be kept of a sequence."""
    if config.task != "generate":
        raise SettingsError(f"{subject} has the task {config.task}: it guesses no text", _FIELD)
    if config.state_bytes:
        raise SettingsError(
            f"{subject} has state layers, which cannot go back to before a wrong guess; choose another", _FIELD
        )
    if isinstance(config, ModelConfig) and len(pool_layout(config).groups) > 1:
        raise SettingsError(
            f"{subject} has layers with and without windows, whose blocks differ; choose another", _FIELD
        )
