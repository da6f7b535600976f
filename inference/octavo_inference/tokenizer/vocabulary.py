"""The vocabulary of a GGUF file, checked: its arrays, its named tokens and its flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Protocol

from octavo_inference.checkpoints.gguf_header import Strings, Value
from octavo_inference.common.errors import ModelError

# Values of tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"
HINT = "put the model's tokenizer.json beside the file"

# Control tokens that some files type as normal ones: ends of a turn or an answer, and marks of infilling (llama.cpp
# finds them by the same names). Typed as normal they could be written by a client.
_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
        *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
    }
)
_INFILLING = frozenset(
    {
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>"),
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>"),
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>"),
        *("<|prefix|>", "<|suffix|>", "<|middle|>", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    }
)
_CONTROLLING = _ENDS | _INFILLING


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


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """`tokens` are different from each other, none is empty; `types` has one entry for each."""

    path: Path
    metadata: dict[str, Value]
    tokens: list[str]
    types: list[int]

    def of_type(self, *types: int) -> list[str]:
        """The tokens of these types, in order."""
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]

    def flag(self, name: str, default: bool) -> bool:
        """`tokenizer.ggml.NAME`. Raises `ModelError` for anything but true and false."""
        value = self.metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, bool) and value not in (0, 1):
            raise ModelError(f"{self.path}: tokenizer.ggml.{name} is {value!r}, expected true or false")
        return bool(value)

    def named(self, name: str, default: int | None = None) -> int | None:
        """`tokenizer.ggml.NAME_token_id`, or the default. Raises `ModelError` for one outside the vocabulary."""
        found = token_id(self.path, self.metadata, name, len(self.tokens))
        if found is None and default is not None and default < len(self.tokens):
            return default
        return found

    @property
    def has_bytes(self) -> bool:
        """True if there is a token for each byte, so that no text is unknown."""
        return {f"<0x{byte:02X}>" for byte in range(256)} <= set(self.tokens)

    def scores(self) -> list[float]:
        """`tokenizer.ggml.scores`. Raises `ModelError` unless there is a finite one for each token."""
        values = self.metadata.get("tokenizer.ggml.scores")
        if not isinstance(values, memoryview) or len(values) != len(self.tokens):
            raise ModelError(f"{self.path}: tokenizer.ggml.scores does not have one entry per token")
        scores = [float(value) for value in values]
        for index, score in enumerate(scores):
            if not isfinite(score):
                raise ModelError(f"{self.path}: tokenizer.ggml.scores has {score} for token {index}, expected a number")
        return scores


def read_vocabulary(file: Described) -> GgufVocabulary:
    """Raises `ModelError` for arrays that are missing, of another length or type, and for a token that occurs twice."""
    vocabulary, kinds = file.metadata.get("tokenizer.ggml.tokens"), file.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(vocabulary, Strings):
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens is missing; {HINT}")
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(vocabulary.read())]
    if not isinstance(kinds, memoryview) or len(kinds) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.token_type does not have one entry per token")
    if kinds.format in ("f", "d"):
        raise ModelError(f"{file.path}: tokenizer.ggml.token_type has fractions, expected integers")
    if len(set(tokens)) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens has {_twice(tokens)!r} twice")
    types = [
        CONTROL if token in _CONTROLLING else int(kind) for token, kind in zip(tokens, kinds.tolist(), strict=True)
    ]
    if "<|tool_response>" in tokens and "</s>" in tokens:
        # Gemma 4 ends answers with other tokens; this one is text there.
        types[tokens.index("</s>")] = NORMAL
    return GgufVocabulary(file.path, file.metadata, tokens, types)


def token_at(file: Described, name: str) -> str | None:
    """The text of a named special token (`bos`, `eos`, `eot`), None if the file has none."""
    vocabulary = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(vocabulary, Strings):
        return None
    tokens = vocabulary.read()
    index = token_id(file.path, file.metadata, name, len(tokens))
    return None if index is None else tokens[index]


def token_id(path: Path, metadata: dict[str, Value], name: str, size: int) -> int | None:
    """`tokenizer.ggml.NAME_token_id`, None if there is none. Raises `ModelError` for one outside `size` tokens."""
    index = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if not isinstance(index, int):
        return None
    if not 0 <= index < size:
        raise ModelError(f"{path}: {name} token {index} is outside the vocabulary of {size}")
    return index


def _twice(tokens: Sequence[str]) -> str:
    return Counter(tokens).most_common(1)[0][0]
