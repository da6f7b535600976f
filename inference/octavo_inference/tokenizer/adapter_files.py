"""How prompts of an adapter are written, by the files in its folder: for the server, `LLM` and `AsyncLLM`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo_inference.tokenizer.adapter_assets import adapter_assets, differ, own_ends
from octavo_inference.tokenizer.assets import TokenizerAssets
from octavo_inference.tokenizer.chat_template import ChatTemplate, load_adapter_template


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """What the folder of an adapter says. `ends`: ids that end its answers, besides the model's."""

    assets: TokenizerAssets
    template: ChatTemplate | None
    """That of the folder; None for the text of the model's, with the tokens in `assets`."""
    ends: tuple[int, ...]


def read_adapter_files(folder: Path, model: TokenizerAssets, vocab: int, added: int) -> AdapterFiles | None:
    """That of an adapter, which may add so many tokens to a model with `vocab` ids.

    None: prompts and answers are written as the model's. Slow. Raises `ModelError` for files that cannot be used.
    """
    assets = adapter_assets(folder, model, vocab, added)
    if not differ(assets, model):
        return None
    has_template = assets.chat_template != model.chat_template
    template = load_adapter_template(assets, folder) if has_template else None
    return AdapterFiles(assets, template, own_ends(assets, model))
