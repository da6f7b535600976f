"""SentencePiece vocabularies of GGUF files (tokenizer.ggml.model = llama) as a BPE with byte fallback.

A file has pieces and scores, no merges: two neighbours merge when their text is a piece, the best piece first. So every
way to cut a piece into two others is a merge, in the order of the pieces (the conversion that transformers does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from octavo_inference.checkpoints.gguf_header import Value
from octavo_inference.common.errors import ModelError

# Values of tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE = "\u2581"
_GEMMA = frozenset({"gemma", "gemma2", "gemma3"})
_LONGEST_PIECE = 1024
# Phi-3's turn markers strip the white space after them, these do not.
_PLAIN_MARKS = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def sentencepiece_tokenizer(path: Path, metadata: dict[str, Value], tokens: list[str], types: memoryview) -> Tokenizer:
    """A tokenizer without its post-processor. Raises `ModelError` for an inconsistent vocabulary."""
    architecture = metadata.get("general.architecture")
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, memoryview) or len(scores) != len(tokens):
        raise ModelError(f"{path}: tokenizer.ggml.scores does not have one entry per token")
    longest = max(map(len, tokens), default=0)
    if longest > _LONGEST_PIECE:
        raise ModelError(f"{path}: the vocabulary has a piece of {longest} characters, expected {_LONGEST_PIECE}")
    gemma = architecture in _GEMMA
    if gemma:
        # Runs of spaces are written plainly, and scores do not follow the order of merges: places in the file do.
        tokens = [_SPACE * len(token) if token.strip(" ") == "" else token for token in tokens]
    order = [-index for index in range(len(tokens))] if gemma else scores.tolist()
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    bytes_there = all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    if unknown is None and not bytes_there:
        raise ModelError(f"{path}: the vocabulary has neither an unknown token nor one for each byte")
    ranked = zip(tokens, order, types, strict=True)
    mergeable = [(token, score) for token, score, kind in ranked if kind not in (_UNKNOWN, _CONTROL, _BYTE)]
    merges = list(_merges(vocab, mergeable))
    model = models.BPE(
        vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=bytes_there, dropout=None
    )
    tokenizer = Tokenizer(model)
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", not gemma))
    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefix else replace
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)

    swallows = architecture == "phi3"
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _UNKNOWN)]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, rstrip=swallows and token not in _PLAIN_MARKS)
            for token in special
        ]
    )
    user = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    # Runs of spaces are merged after spaces have been replaced; matched before, they would never be found.
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in user if t.strip(_SPACE)])
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
