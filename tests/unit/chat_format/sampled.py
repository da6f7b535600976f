"""Answers of a model that knows nothing: tokens drawn at random from those that a grammar allows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Self

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.matcher import Vocabulary

_END = "<|the_end|>"


class RandomModel:
    """A vocabulary and random answers in it. Token `end` ends an answer."""

    def __init__(self, tokenizer: Tokenizer, end: str = _END) -> None:
        self.tokenizer = tokenizer
        self._end = tokenizer.token_to_id(end)
        self._vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size(), [self._end])
        # Likelier than by chance, so that texts end: what closes, and the end.
        self._closing = np.array([self._end, *(tokenizer.token_to_id(token) for token in '"}])<>/\u010a')])

    @classmethod
    def of_bytes(cls, special: Sequence[str] = (), words: Sequence[str] = ()) -> Self:
        """A vocabulary of bytes, a few words, and some special tokens."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in [*special, _END]])
        return cls(tokenizer)

    def answers(self, grammar: str, seeds: Sequence[int], max_tokens: int = 3000) -> list[str]:
        """One answer for each seed that comes to its end. Fails for a grammar in which none does."""
        start = self._vocabulary.compile(grammar)
        found = []
        for seed in seeds:
            chosen = random.Random(seed)
            matcher, ids = start.copy(), []
            mask = np.zeros((self.tokenizer.get_vocab_size() + 31) // 32, np.int32)
            while len(ids) < max_tokens:
                matcher.fill(mask)
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
                closing = self._closing[bits[self._closing] == 1]
                choices = closing if len(closing) and chosen.random() < 0.3 else np.flatnonzero(bits)
                token = int(chosen.choice(choices))
                if token == self._end:
                    found.append(self.tokenizer.decode(ids, skip_special_tokens=False))
                    break
                matcher.consume(token)
                ids.append(token)
        assert found
        return found

    def allows(self, grammar: str, answer: str, *, spelled: bool = False) -> bool:
        """Whether the answer is complete under the grammar. `spelled`: in bytes, without the tokens added to them."""
        matcher = self._vocabulary.compile(grammar)
        ids = self.tokenizer.encode(answer, add_special_tokens=False).ids
        if spelled:
            ids = [self.tokenizer.token_to_id(character) for character in answer.replace(" ", "\u0120")]
        try:
            for token in [*ids, self._end]:
                matcher.consume(token)
        except RequestError:
            return False
        return True
