"""Penalties, bans and grammar masks: equal to the rule in numpy to the bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from bench.gpu.cases.case import Place
from bench.gpu.cases.sampling import masked
from octavo_inference.backends.cuda.kernels.penalties import penalize
from octavo_inference.core.gather import LogitAdjust, SampleRows
from octavo_inference.core.logit_rules import NO_RULES, LogitRules, logit_rules
from octavo_inference.core.model_input import RULES_WIDTH
from octavo_inference.core.request import SamplingParams
from octavo_inference.core.sampling import adjust_logits, sample

from .chooser import Chooser


def adjustment(
    prompt: np.ndarray | list[int],
    output: np.ndarray | list[int],
    banned: list[int],
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
    rules: LogitRules = NO_RULES,
) -> LogitAdjust:
    return LogitAdjust(
        prompt=np.array(prompt, np.int32),
        output=np.array(output, np.int32),
        banned=np.array(banned, np.int32),
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        rules=rules,
    )


def word_rules(vocab: int) -> LogitRules:
    """Biases, and words of which some are about to be completed, some are not, and some are longer than the output."""
    return logit_rules(
        SamplingParams(
            logit_bias={0: 3.5, 9: -2.0, vocab - 1: 100.0},
            bad_words=[[6], [2, 7], [5, 8], [1, 2, 5, 10], [2, 5, 11], [4, 1, 2, 5, 12], [9, 2, 13], [9, 9, 9, 2, 14]],
            logprob_token_ids=[1, 2],
        ),
        vocab,
    )


@pytest.mark.parametrize("vocab", [32, 99, 1000])
def test_penalize(vocab: int, record: Callable[..., None]) -> None:
    random = np.random.default_rng(vocab)
    logits = random.standard_normal((5, vocab)).astype(np.float32)
    logits[3, 7] = -np.inf
    long = random.integers(0, vocab, 2500, dtype=np.int32)  # more than two tiles, all ids many times
    given = {
        3: adjustment(long[:1500], long[1500:], [0, vocab - 1], repetition=1.3, frequency=0.1, presence=0.7),
        0: adjustment([5, 5, 9], [9, 9, 9, 2], [], repetition=0.8, frequency=-0.5, rules=word_rules(vocab)),
        4: adjustment([], [], [1, 1, 3]),
        2: adjustment([4, 4], [1, 2, 5], [], rules=word_rules(vocab)),
        1: adjustment([1, 2], [3], [3], presence=-1.0),
    }
    headers, banned = [], []
    rules = np.full((9, RULES_WIDTH), 10**6, np.int32)  # rows without rules have anything here
    history = np.full((9, 2600), -1, np.int32)  # what is not numbers counts for nothing
    for row, a in given.items():
        said = [*a.prompt, -1, *a.output]
        history[row + 4, 3 : 3 + len(said)] = said
        starts = 3 + np.cumsum([0, len(a.prompt), 1 + len(a.output)])
        factors = np.array([a.repetition_penalty, a.frequency_penalty, a.presence_penalty], np.float32)
        ends = len(banned), len(banned) + len(a.banned)
        headers.append([row, row + 4, *starts, *ends, *factors.view(np.int32), starts[-1], a.rules is not NO_RULES])
        packed = a.rules.packed()
        rules[row + 4, : len(packed)] = packed
        banned += [*a.banned]
    expected = [adjust_logits(logits[i], given[i]) if i in given else logits[i] for i in range(5)]
    changed, counts = torch.from_numpy(logits.copy()), torch.zeros(6, vocab, dtype=torch.int32)
    penalize(
        changed,
        torch.tensor(headers, dtype=torch.int32),
        torch.from_numpy(history),
        torch.from_numpy(rules),
        torch.tensor(banned, dtype=torch.int32),
        counts,
    )
    np.testing.assert_array_equal(changed.numpy(), np.stack(expected))
    assert not counts.any(), "scratch is clean for the next batch"
    record("penalize", (4, vocab), torch.float32, 0.0)


@pytest.mark.parametrize("bans", [3, 9])
def test_any_number_of_penalized_rows(bans: int) -> None:
    """More than one group of them, by their number and by what they ban."""
    vocab, count = 32, 40
    random = np.random.default_rng(0)
    logits = random.standard_normal((count, vocab)).astype(np.float32)
    greedy = SampleRows.greedy(np.arange(count, dtype=np.int32), np.zeros(count, np.int32))
    for i in range(count):
        likely = np.argsort(-logits[i])[:9]
        kinds = [
            None,
            adjustment(likely[:2], likely[2:4], [int(likely[5])], repetition=50.0),
            adjustment([], [], likely[:bans]),
        ]
        greedy.adjust[i] = kinds[min(i % 7, 2)]
    chooser = Chooser(vocab, count, max_logprobs=0)
    for _ in range(2):  # the second batch finds the scratch as the first did
        found = chooser.sample(logits, greedy)
        assert found.tokens.tolist() == sample(logits, greedy).tokens.tolist()


@pytest.mark.parametrize(("rows", "vocab"), [(1, 32), (3, 99), (2, 1000), (2, 2049)])
def test_bitmask(rows: int, vocab: int, record: Callable[..., None]) -> None:
    trial = masked(Place(torch.device("cpu"), torch.float32, tiny=True), rows, vocab)
    trial.launch()
    [(found, expected)] = trial.pairs()
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    record("apply_bitmask", (rows, vocab), torch.float32, 0.0)
