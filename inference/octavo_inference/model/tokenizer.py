"""Tokenizers: `tokenizer.json` as it is, or built from the vocabulary and merges a GGUF file carries."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from octavo_inference.errors import ModelError
from octavo_inference.model.gguf_header import Value

# Values of tokenizer.ggml.token_type
_CONTROL = 3
_USER_DEFINED = 4

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
# Names of tokenizer.ggml.pre with the same splitting rule (llama.cpp: llama_vocab_pre_type).
_GPT2 = frozenset({"gpt-2", "default", "gpt2"})
_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"})
_QWEN2 = frozenset({"qwen2", "deepseek-r1-qwen"})


class Described(Protocol):
    """A GGUF file, whole or its head alone."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    @property
    def metadata(self) -> dict[str, Value]:
        """Its keys and values."""
        ...


def load_tokenizer(path: Path) -> Tokenizer:
    """A `tokenizer.json`."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"{path}: not a tokenizer: {error}") from error


def tokenizer_from_gguf(file: Described) -> Tokenizer:
    """The byte-level BPE tokenizer that a GGUF file describes. Raises `ModelError` naming a kind not supported."""
    metadata = file.metadata
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    hint = "put the model's tokenizer.json beside the file"
    if kind != "gpt2":
        raise ModelError(f"{file.path}: tokenizer model {kind!r} is not supported (gpt2 is); {hint}")
    if not isinstance(pre, str) or pre not in _GPT2 | _DIGITS | _LLAMA3 | _QWEN2:
        raise ModelError(f"{file.path}: pre-tokenizer {pre!r} is not supported; {hint}")
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens or .merges is missing; {hint}")
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, memoryview) or len(types) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.token_type does not have one entry per token")
    pairs = []
    for merge in merges:
        left, separator, right = merge.partition(" ")
        if not separator or not right:
            raise ModelError(f"{file.path}: merge {merge!r} is not two tokens separated by a space")
        pairs.append((left, right))
    try:
        model = models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=pairs,
            ignore_merges=pre in _LLAMA3,
        )
    except Exception as error:
        raise ModelError(f"{file.path}: vocabulary and merges do not fit: {error}") from error
    tokenizer = Tokenizer(model)
    if pre in _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    user = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in user])
    bos = token_at(file, "bos")
    # Llama 3 files leave add_bos_token out and mean it.
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", pre in _LLAMA3):
        tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
                ),
            ]
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def token_at(file: Described, name: str) -> str | None:
    """The text of a named special token (`bos`, `eos`, `eot`), None when the file names none."""
    tokens, index = file.metadata.get("tokenizer.ggml.tokens"), file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if not isinstance(tokens, list) or not isinstance(index, int):
        return None
    if not 0 <= index < len(tokens):
        raise ModelError(f"{file.path}: {name} token {index} is outside the vocabulary of {len(tokens)}")
    return tokens[index]


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _GPT2:
        return byte_level
    if pre in _DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    split = _QWEN2_SPLIT if pre in _QWEN2 else _LLAMA3_SPLIT
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
