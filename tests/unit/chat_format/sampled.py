"""Answers of a model that knows nothing: tokens drawn at random from those that a grammar allows."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.matcher import Vocabulary

_END = "<|the_end|>"


class RandomModel:
    """A vocabulary of bytes and a few words, with the given special tokens, and its random answers."""

    def __init__(self, special: Sequence[str], words: Sequence[str] = ()) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in [*special, _END]])
        self.tokenizer = tokenizer
        self._end = tokenizer.token_to_id(_END)
        self._vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size(), [self._end])

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
                allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                # Likelier than by chance, so that texts end: what closes, and the end.
                closing = [i for i in allowed if i == self._end or self.tokenizer.id_to_token(int(i)) in _CLOSING]
                token = int(chosen.choice(closing if closing and chosen.random() < 0.3 else list(allowed)))
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


_CLOSING = frozenset('"}])<>/') | {"\u010a"}
