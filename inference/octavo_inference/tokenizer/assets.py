"""Tokenizer and chat template of a model, without its weights. No numpy, for the API process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from octavo_inference.checkpoints.gguf_header import read_header
from octavo_inference.checkpoints.guard import refusing
from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.checkpoints.resolve import find_model
from octavo_inference.checkpoints.tokenizer_config import token_text
from octavo_inference.common.errors import ModelError
from octavo_inference.tokenizer.tokenizer import load_tokenizer, tokenizer_from_gguf
from octavo_inference.tokenizer.vocabulary import Described, token_at

# What transformers loads a tokenizer.json as if no class is named.
_ANY_CLASS = "PreTrainedTokenizerFast"


@dataclass(frozen=True, slots=True)
class TokenizerAssets:
    """`chat_template` is Jinja source, None when the model has none.

    The named special tokens are texts, None when the model has none. `tokenizer_class` is transformers' name.
    """

    tokenizer: Tokenizer
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None = None
    unk_token: str | None = None
    tokenizer_class: str = _ANY_CLASS

    @property
    def special_tokens(self) -> dict[str, str]:
        """The named special tokens that the model has."""
        named = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "pad_token": self.pad_token,
            "unk_token": self.unk_token,
        }
        return {name: text for name, text in named.items() if text is not None}


def load_assets(path: str) -> TokenizerAssets:
    """Tokenizer and chat template of a model, `path` as for `find_model`. Raises `ModelError` naming the problem."""
    source = find_model(path)
    with refusing(source):
        return gguf_assets(read_header(source)) if source.is_file() else hf_assets(source)


def gguf_assets(file: Described) -> TokenizerAssets:
    """From a GGUF file; a tokenizer.json in its folder takes precedence."""
    folder = file.path.parent
    beside = folder / "tokenizer.json"
    template = file.metadata.get("tokenizer.chat_template")
    tokenizer = load_tokenizer(beside) if beside.exists() else tokenizer_from_gguf(file)
    return TokenizerAssets(
        tokenizer=tokenizer,
        chat_template=template if isinstance(template, str) else hf_template(folder),
        bos_token=token_at(file, "bos"),
        eos_token=token_at(file, "eos"),
        pad_token=_named_token(file, tokenizer, "padding"),
        unk_token=_named_token(file, tokenizer, "unknown"),
    )


def hf_assets(folder: Path) -> TokenizerAssets:
    """From tokenizer.json and tokenizer_config.json."""
    file = folder / "tokenizer.json"
    if not file.exists():
        raise ModelError(f"{folder}: tokenizer.json is missing beside the safetensors files")
    settings = optional_json(folder / "tokenizer_config.json")
    return TokenizerAssets(
        tokenizer=load_tokenizer(file),
        chat_template=hf_template(folder),
        bos_token=token_text(settings.get("bos_token")),
        eos_token=token_text(settings.get("eos_token")),
        pad_token=token_text(settings.get("pad_token")),
        unk_token=token_text(settings.get("unk_token")),
        tokenizer_class=token_text(settings.get("tokenizer_class")) or _ANY_CLASS,
    )


def check_vocabulary(tokenizer: Tokenizer, vocab: int, model: object) -> None:
    """Raises `ModelError` when the tokenizer of `model` has more tokens than its `vocab` logits."""
    known = tokenizer.get_vocab_size(with_added_tokens=True)
    if known > vocab:
        raise ModelError(f"{model}: the tokenizer has {known} tokens, more than the model's {vocab}")


def hf_template(folder: Path) -> str | None:
    """The chat template in the files of a folder, None without one."""
    jinja = folder / "chat_template.jinja"
    if jinja.exists():
        return jinja.read_text(encoding="utf-8")
    template = optional_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        # Several named templates: the one called "default" is the one for chat.
        template = next(
            (entry.get("template") for entry in template if isinstance(entry, dict) and entry.get("name") == "default"),
            None,
        )
    return template if isinstance(template, str) else None


def _named_token(file: Described, tokenizer: Tokenizer, name: str) -> str | None:
    # Serving needs neither padding nor unknown, so an id outside the vocabulary is no reason to refuse the file.
    index = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if not isinstance(index, int) or not 0 <= index < tokenizer.get_vocab_size():
        return None
    return tokenizer.id_to_token(index)
