"""Tokenizer and chat template that a trainer saved with an adapter. No numpy, for the API process.

A fine-tune may have a chat template of its own, tokens that take the place of reserved ones, or another token that ends
an answer. What its folder does not have, or has as the model has it, is the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from octavo_inference.checkpoints.guard import refusing
from octavo_inference.checkpoints.jsonfile import optional_json, read_json
from octavo_inference.checkpoints.peft_tokens import TEXT_FILES, beyond, check_text_files, padding_token
from octavo_inference.checkpoints.tokenizer_config import token_text
from octavo_inference.common.errors import ModelError
from octavo_inference.tokenizer.assets import TokenizerAssets, hf_template
from octavo_inference.tokenizer.tokenizer import load_tokenizer

# Characters of an added token, and of all of them. Text of clients is searched for them and for their beginnings.
_LONGEST, _ALL = 256, 1 << 18
_MOST_TEMPLATE = TEXT_FILES["chat_template.jinja"]


def adapter_assets(folder: Path, model: TokenizerAssets, vocab: int, added: int) -> TokenizerAssets:
    """The tokenizer and chat template for an adapter that may add so many tokens to a model with `vocab` ids.

    Its `tokenizer` is the model's object if it has no other tokens. Raises `ModelError` for files that are too large or
    damaged, and for tokens that the model does not have.
    """
    check_text_files(folder)
    with refusing(folder):
        settings = optional_json(folder / "tokenizer_config.json")
        template = hf_template(folder)
        tokenizer = _tokenizer(folder / "tokenizer.json", model.tokenizer, (vocab, added), padding_token(folder))
    if template is not None and len(template) > _MOST_TEMPLATE:
        raise ModelError(f"{folder}: a chat template of {len(template)} characters; up to {_MOST_TEMPLATE} is possible")
    return replace(
        model,
        tokenizer=tokenizer,
        chat_template=model.chat_template if template is None else template,
        bos_token=_named(settings, "bos_token", tokenizer) or model.bos_token,
        eos_token=_named(settings, "eos_token", tokenizer) or model.eos_token,
    )


def differ(assets: TokenizerAssets, model: TokenizerAssets) -> bool:
    """True if an adapter's prompts or answers are written in another way than the model's."""
    return assets.tokenizer is not model.tokenizer or any(
        getattr(assets, name) != getattr(model, name) for name in ("chat_template", "bos_token", "eos_token")
    )


def own_ends(assets: TokenizerAssets, model: TokenizerAssets) -> tuple[int, ...]:
    """The id of the token that ends answers of an adapter, if it is another one than the model's."""
    if assets.eos_token is None or assets.eos_token == model.eos_token:
        return ()
    index = assets.tokenizer.token_to_id(assets.eos_token)
    return () if index is None else (index,)


def _named(settings: Mapping[str, Any], name: str, tokenizer: Tokenizer) -> str | None:
    """A named token of tokenizer_config.json, if the tokenizer knows it."""
    text = token_text(settings.get(name))
    return None if text is None or tokenizer.token_to_id(text) is None else text


def _tokenizer(file: Path, model: Tokenizer, ids: tuple[int, int], pad: str | None) -> Tokenizer:
    if not file.exists():
        return model
    try:
        return _combined(file, model, ids, pad)
    except (ModelError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library's Rust code is no Exception
        raise ModelError(f"{file}: not a tokenizer: {type(error).__name__}") from error


def _combined(file: Path, model: Tokenizer, ids: tuple[int, int], pad: str | None) -> Tokenizer:
    own, (vocab, most) = load_tokenizer(file), ids
    # Only behind all others: the library numbers those behind a gap again.
    if pad is not None and vocab <= (own.token_to_id(pad) or 0) == max(own.get_vocab().values()):
        own = _without(file, pad)
    added, plain = own.get_added_tokens_decoder(), own.get_vocab(with_added_tokens=False)
    sizes = [len(token.content) for token in added.values()]
    if max(sizes, default=0) > _LONGEST or sum(sizes) > _ALL:
        raise ModelError(
            f"{file}: added tokens of {sum(sizes)} characters, one with {max(sizes)}; {_ALL} and {_LONGEST} are "
            "possible"
        )
    last = max((*plain.values(), *added), default=-1)
    if last >= vocab + most:
        raise ModelError(f"{file}: token {own.id_to_token(last)!r} has the id {last}; {beyond(last, vocab, most)}")
    known = model.get_vocab(with_added_tokens=True)
    other = next((text for text, index in plain.items() if known.get(text) != index and index not in added), None)
    if other is not None:
        raise ModelError(
            f"{file}: token {other!r} has the id {plain[other]}, which the served model's tokenizer has not; the "
            "adapter was trained on another base model"
        )
    base = model.get_vocab(with_added_tokens=False)
    shares = all(base.get(text) == index or index in added for text, index in plain.items())
    wanted = _described(added)
    same_added = wanted == _described(model.get_added_tokens_decoder())
    if shares and same_added and _state(own.post_processor) == _state(model.post_processor):
        return model
    # A vocabulary with its merges may take 100 MB. The library gives a token that replaces one of the vocabulary
    # another id, so an adapter with such a token needs a vocabulary of its own.
    for vocabulary in (model, own) if shares else (own,):
        found = _assembled(own, model, vocabulary)
        if _described(found.get_added_tokens_decoder()) == wanted:
            return found
    raise ModelError(f"{file}: its added tokens cannot be combined with the served model's tokenizer")


def _assembled(own: Tokenizer, model: Tokenizer, vocabulary: Tokenizer) -> Tokenizer:
    """The model's tokenizer with the added tokens of `own`, and the `vocabulary` of one of them, shared in memory.

    The rules by which text is cut are always the model's: those of a file may take forever (regular expressions).
    """
    found = Tokenizer(vocabulary.model)
    for part, source in (("normalizer", model), ("pre_tokenizer", model), ("post_processor", own), ("decoder", model)):
        value = getattr(source, part)
        if value is not None:
            setattr(found, part, value)
    for _, token in sorted(own.get_added_tokens_decoder().items()):
        if token.special:
            found.add_special_tokens([token])
        else:
            found.add_tokens([token])
    return found


def _without(file: Path, pad: str) -> Tokenizer:
    """A tokenizer without its token for padding."""
    data = read_json(file, dict[str, Any], "a tokenizer")
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] != pad]
    vocab = data["model"]["vocab"]
    if isinstance(vocab, dict):
        vocab.pop(pad, None)
    data["padding"] = data["truncation"] = None
    return Tokenizer.from_str(msgspec.json.encode(data).decode())


def _described(added: Mapping[int, AddedToken]) -> dict[int, tuple[Any, ...]]:
    return {
        index: (token.content, token.special, token.lstrip, token.rstrip, token.single_word, token.normalized)
        for index, token in added.items()
    }


def _state(part: Any) -> Any:
    return None if part is None else part.__getstate__()
