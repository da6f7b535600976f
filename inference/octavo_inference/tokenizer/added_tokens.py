"""Tokens that are found in a text before anything else: control tokens and those that a model's user defined."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer

from octavo_inference.tokenizer.vocabulary import CONTROL, SPACE, UNKNOWN, USER_DEFINED, GgufVocabulary

# Files do not say which tokens swallow white space beside them, so llama.cpp and this table know the models.
_MASKS_BY_RULE = {"jina-v2-de": "<mask>", "jina-v2-es": "<mask>", "jina-v2-code": "<mask>", "modern-bert": "[MASK]"}
_MASKS_BY_ARCHITECTURE = {"nomic-bert-moe": "<mask>", "jina-bert-v3": "<mask>"}
# Phi-3's turn markers strip the white space after them, these do not.
_PLAIN_MARKS = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def add_tokens(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Control and unknown tokens as special ones, user-defined ones as others."""
    architecture = vocabulary.metadata.get("general.architecture")
    mask = _MASKS_BY_RULE.get(str(vocabulary.metadata.get("tokenizer.ggml.pre")))
    mask = mask or _MASKS_BY_ARCHITECTURE.get(str(architecture))
    swallows = architecture == "phi3" and vocabulary.metadata.get("tokenizer.ggml.model") == "llama"
    tokenizer.add_special_tokens(
        [
            AddedToken(
                token,
                special=True,
                normalized=False,
                lstrip=token == mask,
                rstrip=swallows and token not in _PLAIN_MARKS,
            )
            for token in vocabulary.of_type(CONTROL, UNKNOWN)
        ]
    )
    # Runs of marked spaces are merged after spaces have been replaced; matched before, they would never be found.
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token in vocabulary.of_type(USER_DEFINED)
            if token.strip(SPACE)
        ]
    )
