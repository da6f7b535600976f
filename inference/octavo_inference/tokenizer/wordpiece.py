"""WordPiece vocabularies of GGUF files (tokenizer.ggml.model = bert).

Files mark the start of a word with U+2581; WordPiece marks what continues one with `##`.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from octavo_inference.common.errors import ModelError
from octavo_inference.tokenizer.added_tokens import add_tokens
from octavo_inference.tokenizer.vocabulary import CONTROL, SPACE, UNKNOWN, GgufVocabulary

_CONTINUES = "##"
# BERT's own vocabulary has it there.
_UNKNOWN_ID = 100


def wordpiece_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """A tokenizer without its post-processor. Raises `ModelError` for a vocabulary without an unknown token."""
    vocab: dict[str, int] = {}
    for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        piece = token if kind in (CONTROL, UNKNOWN) else token[1:] if token[0] == SPACE else _CONTINUES + token
        if vocab.setdefault(piece, index) != index:
            raise ModelError(f"{vocabulary.path}: tokens {vocab[piece]} and {index} are the same piece {piece!r}")
    unknown = vocabulary.named("unknown", _UNKNOWN_ID)
    if unknown is None:
        raise ModelError(f"{vocabulary.path}: tokenizer.ggml.unknown_token_id is missing")
    names = {index: piece for piece, index in vocab.items()}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=names[unknown], continuing_subword_prefix=_CONTINUES))
    lowercase = vocabulary.flag("normalizer.lowercase", default=True)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=vocabulary.flag("normalizer.strip_accents", default=lowercase)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(_CONTINUES)
    add_tokens(tokenizer, vocabulary)
    return tokenizer
