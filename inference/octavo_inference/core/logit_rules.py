"""A request's own rules for its tokens: logit bias, bad words, allowed ids, and the ids to report on.

The rules of a sequence do not change while it runs. They are in its row of the row table as integers, sent once:

    rules   bias count b | word count w | id count i | words' tokens t | ids [b] | bias bits [b] | report ids [i] |
            end of each word [w] | tokens of the words [t]
    mask    bit n of word n // 32 is 1 if id n is allowed (the layout of llguidance and xgrammar)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from octavo_inference.core.model_input import RULES_HEADER, Float32, Int32
from octavo_inference.core.request import SamplingParams

_NO_IDS = np.empty(0, np.int32)


class LogitRules(NamedTuple):  # one per row and step with rules, as `LogitAdjust`
    """Rules of one sequence. `mask` is empty where every id is allowed.

    `bias` is added to the logits of `bias_ids`. Word i is `word_tokens[word_ends[i - 1] : word_ends[i]]`; its last
    token is banned where the output ends with the tokens before it. `report_ids`: see
    `SamplingParams.logprob_token_ids`.
    """

    bias_ids: Int32 = _NO_IDS
    bias: Float32 = _NO_IDS.view(np.float32)
    word_ends: Int32 = _NO_IDS
    word_tokens: Int32 = _NO_IDS
    mask: Int32 = _NO_IDS
    report_ids: Int32 = _NO_IDS

    @property
    def changes_logits(self) -> bool:
        """True if the rules can change a logit."""
        return len(self.bias_ids) > 0 or len(self.word_ends) > 0 or len(self.mask) > 0

    def packed(self) -> Int32:
        """The integers of the field `rules` of the row table."""
        counts = [len(self.bias_ids), len(self.word_ends), len(self.report_ids), len(self.word_tokens)]
        parts = (self.bias_ids, self.bias.view(np.int32), self.report_ids, self.word_ends, self.word_tokens)
        return np.concatenate([np.array(counts, np.int32), *parts])


NO_RULES = LogitRules()


def logit_rules(sampling: SamplingParams, vocab: int) -> LogitRules:
    """The rules of a request with valid parameters (`core.validation`)."""
    if not (sampling.logit_bias or sampling.allowed_token_ids or sampling.bad_words or sampling.logprob_token_ids):
        return NO_RULES
    bias = dict(sampling.logit_bias)
    return LogitRules(
        bias_ids=np.array(list(bias), np.int32),
        bias=np.array(list(bias.values()), np.float32),
        word_ends=np.cumsum([len(word) for word in sampling.bad_words], dtype=np.int32),
        word_tokens=np.array([token for word in sampling.bad_words for token in word], np.int32),
        mask=bitmask(sampling.allowed_token_ids, vocab) if sampling.allowed_token_ids else _NO_IDS,
        report_ids=np.array(sampling.logprob_token_ids, np.int32),
    )


def bitmask(allowed: tuple[int, ...], vocab: int) -> Int32:
    """The bits of the allowed ids: id n is bit n % 32 of word n // 32."""
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def unpacked(rules: Int32, mask: Int32) -> LogitRules:
    """Views of a row's integers in the row table; `mask` is empty if the row has none."""
    biased, words, ids, tokens = rules[:RULES_HEADER].tolist()
    at = np.cumsum([RULES_HEADER, biased, biased, ids, words, tokens]).tolist()
    return LogitRules(
        bias_ids=rules[at[0] : at[1]],
        bias=rules[at[1] : at[2]].view(np.float32),
        report_ids=rules[at[2] : at[3]],
        word_ends=rules[at[3] : at[4]],
        word_tokens=rules[at[4] : at[5]],
        mask=mask,
    )
