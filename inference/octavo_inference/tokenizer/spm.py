"""SentencePiece vocabularies of GGUF files (tokenizer.ggml.model = llama) as a BPE with byte fallback.

A file has pieces and scores, no merges: two neighbours merge when their text is a piece, the best piece first. So every
way to cut a piece into two others is a merge, in the order of the pieces (the conversion that transformers does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tokenizers import Tokenizer, decoders, models, normalizers

from octavo_inference.common.errors import ModelError
from octavo_inference.tokenizer.added_tokens import add_tokens
from octavo_inference.tokenizer.vocabulary import BYTE, CONTROL, SPACE, UNKNOWN, GgufVocabulary

_GEMMA = frozenset({"gemma", "gemma2", "gemma3"})
_LONGEST_PIECE = 1024


def sentencepiece_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """A tokenizer without its post-processor. Raises `ModelError` for an inconsistent vocabulary."""
    tokens, types = vocabulary.tokens, vocabulary.types
    scores = vocabulary.scores()
    longest = max(map(len, tokens), default=0)
    if longest > _LONGEST_PIECE:
        raise ModelError(
            f"{vocabulary.path}: the vocabulary has a piece of {longest} characters, expected {_LONGEST_PIECE}"
        )
    gemma = vocabulary.metadata.get("general.architecture") in _GEMMA
    if gemma:
        # Runs of spaces are written plainly, and scores do not follow the order of merges: places in the file do.
        tokens = [SPACE * len(token) if token.strip(" ") == "" else token for token in tokens]
        vocabulary = replace(vocabulary, tokens=tokens)
        scores = [-float(index) for index in range(len(tokens))]
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    bytes_there = vocabulary.has_bytes
    if unknown is None and not bytes_there:
        raise ModelError(f"{vocabulary.path}: the vocabulary has neither an unknown token nor one for each byte")
    ranked = zip(tokens, scores, types, strict=True)
    mergeable = [(token, score) for token, score, kind in ranked if kind not in (UNKNOWN, CONTROL, BYTE)]
    merges = list(_merges(vocab, mergeable))
    model = models.BPE(
        vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=bytes_there, dropout=None
    )
    tokenizer = Tokenizer(model)
    prefix = vocabulary.flag("add_space_prefix", default=not gemma)
    marked = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), marked]) if prefix else marked
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    add_tokens(tokenizer, vocabulary)
    return tokenizer


def _merges(vocab: dict[str, int], mergeable: Sequence[tuple[str, float]]) -> Iterator[tuple[str, str]]:
    """Best score first; of equal ones, as transformers' generate_merges orders them: longer left sides first."""
    found: list[tuple[float, int, int, str, str]] = []
    for piece, score in mergeable:
        cuts = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        pairs = [(vocab[left], vocab[right], left, right) for left, right in cuts if left in vocab and right in vocab]
        found += [(score, len(left), len(right), left, right) for _, _, left, right in sorted(pairs)]
    # Sorted stably and downwards, so that equal entries stay in the order of their parts.
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return ((left, right) for _, _, _, left, right in found)
