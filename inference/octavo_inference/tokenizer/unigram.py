"""SentencePiece unigram vocabularies of GGUF files (tokenizer.ggml.model = t5)."""

from __future__ import annotations

import re

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from octavo_inference.common.errors import ModelError
from octavo_inference.tokenizer.added_tokens import add_tokens
from octavo_inference.tokenizer.charsmap import check_charsmap
from octavo_inference.tokenizer.vocabulary import BYTE, CONTROL, SPACE, UNKNOWN, GgufVocabulary

# T5's own vocabulary has it there.
_UNKNOWN_ID = 2
_MOST_HIDDEN = 1024


def unigram_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """A tokenizer without its post-processor. Raises `ModelError` for an inconsistent vocabulary."""
    unknown = vocabulary.named("unknown", _UNKNOWN_ID)
    if unknown is None:
        raise ModelError(f"{vocabulary.path}: tokenizer.ggml.unknown_token_id is missing")
    pieces = list(zip(vocabulary.tokens, vocabulary.scores(), strict=True))
    tokenizer = Tokenizer(models.Unigram(pieces, unknown, byte_fallback=vocabulary.has_bytes))
    prefix = vocabulary.flag("add_space_prefix", default=True)
    tokenizer.normalizer = _normalizer(vocabulary, prefix=prefix)
    hidden = _hidden(vocabulary)
    if hidden:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(hidden), behavior="isolated")
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    add_tokens(tokenizer, vocabulary)
    return tokenizer


def _normalizer(vocabulary: GgufVocabulary, *, prefix: bool) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    charsmap = vocabulary.metadata.get("tokenizer.ggml.precompiled_charsmap")
    if charsmap is not None:
        if not isinstance(charsmap, memoryview) or charsmap.itemsize != 1:
            raise ModelError(f"{vocabulary.path}: tokenizer.ggml.precompiled_charsmap is not an array of bytes")
        raw = charsmap.tobytes()
        check_charsmap(raw, vocabulary.path)
        steps.append(normalizers.Precompiled(raw))
    if vocabulary.flag("remove_extra_whitespaces", default=False):
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        steps.append(normalizers.Replace(Regex(r"\A | \z"), ""))
    if prefix:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


def _hidden(vocabulary: GgufVocabulary) -> str:
    """An expression that cuts the names of control tokens and bytes before their last character.

    The library looks for every piece in a text. So a name that a client writes would become the token.
    """
    starts: dict[str, list[str]] = {}
    for token in vocabulary.of_type(CONTROL, UNKNOWN):
        if len(token) > 1:
            starts.setdefault(re.escape(token[-1]), []).append(re.escape(token[:-1]))
    if vocabulary.of_type(BYTE):
        starts.setdefault(">", []).append("<0x[0-9A-F]{2}")
    count = sum(map(len, starts.values()))
    if count > _MOST_HIDDEN:
        raise ModelError(f"{vocabulary.path}: {count} control tokens, supported are {_MOST_HIDDEN}")
    return "|".join(f"(?={last})(?:{'|'.join(f'(?<={start})' for start in before)})" for last, before in starts.items())
