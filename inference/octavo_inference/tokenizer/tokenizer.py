"""Tokenizers: `tokenizer.json`, or built from the vocabulary of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from octavo_inference.checkpoints.gguf_header import Strings, Value
from octavo_inference.common.errors import ModelError
from octavo_inference.tokenizer.spm import sentencepiece_tokenizer

# Values of tokenizer.ggml.token_type
_CONTROL = 3
_USER_DEFINED = 4
_HINT = "put the model's tokenizer.json beside the file"

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
# Words end where lower case becomes upper case.
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
_GPT4O_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    + _CONTRACTED
    + r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    + _CONTRACTED
    + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Names of tokenizer.ggml.pre with the same splitting rule (llama.cpp: llama_vocab_pre_type).
_GPT2 = frozenset({"gpt-2", "default", "gpt2", "phi-2"})
_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx", "falcon3", "pixtral"})
_QWEN2 = frozenset({"qwen2", "deepseek-r1-qwen", "megrez"})
_TEKKEN = frozenset({"tekken"})
_GPT4O = frozenset({"gpt-4o", "llama4"})
_KNOWN = _GPT2 | _DIGITS | _LLAMA3 | _QWEN2 | _TEKKEN | _GPT4O
# A piece that is a whole token becomes that token, regardless of merges.
_WHOLE = _LLAMA3 | _TEKKEN


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
    """The tokenizer of a GGUF file. Raises `ModelError` naming an unsupported kind."""
    metadata = file.metadata
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ModelError(f"{file.path}: tokenizer model {kind!r} is not supported (gpt2 and llama are); {_HINT}")
    vocabulary, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(vocabulary, Strings):
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens is missing; {_HINT}")
    tokens = vocabulary.read()
    if not isinstance(types, memoryview) or len(types) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.token_type does not have one entry per token")
    pre = metadata.get("tokenizer.ggml.pre", "default")
    steps: list[processors.PostProcessor] = []
    if kind == "llama":
        tokenizer, adds_bos = sentencepiece_tokenizer(file.path, metadata, tokens, types), True
    else:
        # Llama 3 and Tekken files omit add_bos_token although their models need it.
        tokenizer, adds_bos = _byte_level_tokenizer(file, tokens, types, pre), pre in _WHOLE
        steps.append(processors.ByteLevel(trim_offsets=False))
    bos = token_at(file, "bos")
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        steps.append(
            processors.TemplateProcessing(
                single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
            )
        )
    if steps:
        tokenizer.post_processor = processors.Sequence(steps)
    return tokenizer


def _byte_level_tokenizer(file: Described, tokens: list[str], types: memoryview, pre: object) -> Tokenizer:
    if not isinstance(pre, str) or pre not in _KNOWN:
        raise ModelError(f"{file.path}: pre-tokenizer {pre!r} is not supported; {_HINT}")
    merges = file.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, Strings):
        raise ModelError(f"{file.path}: tokenizer.ggml.merges is missing; {_HINT}")
    pairs = []
    for merge in merges.read():
        left, separator, right = merge.partition(" ")
        if not separator or not right:
            raise ModelError(f"{file.path}: merge {merge!r} is not two tokens separated by a space")
        pairs.append((left, right))
    try:
        model = models.BPE(
            vocab={token: index for index, token in enumerate(tokens)}, merges=pairs, ignore_merges=pre in _WHOLE
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
    return tokenizer


def token_at(file: Described, name: str) -> str | None:
    """The text of a named special token (`bos`, `eos`, `eot`), None if the file has none."""
    vocabulary = file.metadata.get("tokenizer.ggml.tokens")
    index = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if not isinstance(vocabulary, Strings) or not isinstance(index, int):
        return None
    tokens = vocabulary.read()
    if not 0 <= index < len(tokens):
        raise ModelError(f"{file.path}: {name} token {index} is outside the vocabulary of {len(tokens)}")
    return tokens[index]


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _GPT2:
        return byte_level
    if pre in _DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    splits = ((_QWEN2, _QWEN2_SPLIT), (_TEKKEN, _TEKKEN_SPLIT), (_GPT4O, _GPT4O_SPLIT), (_LLAMA3, _LLAMA3_SPLIT))
    split = next(rule for names, rule in splits if pre in names)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
