"""Tokenizers: `tokenizer.json`, or built from the vocabulary of a GGUF file."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, processors

from octavo_inference.common.errors import ModelError
from octavo_inference.tokenizer.bpe import bpe_tokenizer
from octavo_inference.tokenizer.special_tokens import framing
from octavo_inference.tokenizer.splitting import RULES, SplittingRule
from octavo_inference.tokenizer.spm import sentencepiece_tokenizer
from octavo_inference.tokenizer.unigram import unigram_tokenizer
from octavo_inference.tokenizer.vocabulary import HINT, Described, read_vocabulary
from octavo_inference.tokenizer.wordpiece import wordpiece_tokenizer

# Values of tokenizer.ggml.model
_WITHOUT_MERGES = {"bert": wordpiece_tokenizer, "llama": sentencepiece_tokenizer, "t5": unigram_tokenizer}
_WITH_MERGES = frozenset({"gemma4", "gpt2", "whitespace"})
KINDS = tuple(sorted(_WITH_MERGES | _WITHOUT_MERGES.keys()))
# The tokenizers library has no model for these.
_REFUSED = {
    "rwkv": "its pieces are bytes, the longest one first",
    "plamo2": "its unigrams are searched from the end of the text",
    "hybriddna": "it writes DNA in groups of six letters",
    "none": "the file has no vocabulary",
    "no_vocab": "the file has no vocabulary",
}


def load_tokenizer(path: Path) -> Tokenizer:
    """A `tokenizer.json`, without the truncation and padding that those of encoders may state."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"{path}: not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_from_gguf(file: Described) -> Tokenizer:
    """The tokenizer of a GGUF file. Raises `ModelError` naming an unsupported kind or splitting rule."""
    kind = file.metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in KINDS:
        why = f": {_REFUSED[kind]}" if isinstance(kind, str) and kind in _REFUSED else ""
        raise ModelError(
            f"{file.path}: tokenizer model {kind!r} is not supported{why} ({', '.join(KINDS)} are); {HINT}"
        )
    rule = _rule(file, kind) if kind in _WITH_MERGES else None
    vocabulary = read_vocabulary(file)
    tokenizer = _WITHOUT_MERGES[kind](vocabulary) if rule is None else bpe_tokenizer(vocabulary, rule)
    steps: list[processors.PostProcessor] = []
    if rule is not None and rule.alphabet == "bytes":
        steps.append(processors.ByteLevel(trim_offsets=False))
    frame = framing(vocabulary, rule)
    if frame is not None:
        steps.append(frame)
    if steps:
        tokenizer.post_processor = processors.Sequence(steps)
    return tokenizer


def _rule(file: Described, kind: str) -> SplittingRule:
    name = file.metadata.get("tokenizer.ggml.pre", "default") if kind == "gpt2" else kind
    if not isinstance(name, str) or name not in RULES:
        raise ModelError(f"{file.path}: pre-tokenizer {name!r} is not supported; {HINT}")
    return RULES[name]
