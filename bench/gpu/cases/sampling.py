"""Cases of the sampler's kernels at the vocabulary of Llama 3, compared with the rule in core/sampling.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bench.gpu.cases.case import Case, Pair, Place, Trial, size_of
from octavo_inference.backends.cuda.kernels.bitmask import apply_bitmask
from octavo_inference.backends.cuda.kernels.logprobs import NamedIds, log_probabilities
from octavo_inference.backends.cuda.kernels.penalties import penalize
from octavo_inference.backends.cuda.kernels.sample import choose
from octavo_inference.backends.cuda.kernels.sampler_scratch import (
    ReportScratch,
    SampleScratch,
    report_shapes,
    sample_shapes,
)
from octavo_inference.core import sampling as rule
from octavo_inference.core.gather import LogitAdjust
from octavo_inference.core.logit_rules import logit_rules
from octavo_inference.core.request import MAX_LOGPROBS, SamplingParams

VOCAB = 128_256
ROWS = 32
# Temperature, top-p, top-k, min-p: rows take turns.
KINDS = {
    "greedy": [(0.0, 1.0, 0, 0.0)],
    "random": [(0.7, 1.0, 0, 0.0), (1.3, 1.0, 0, 0.0)],
    "cut": [(1.0, 0.9, 0, 0.0), (1.0, 1.0, 40, 0.0), (1.0, 1.0, 0, 0.05), (0.8, 0.95, 50, 0.01), (2.0, 0.5, 1000, 0.0)],
}
Prepare = Callable[[Place], Trial]
RULES = logit_rules(
    SamplingParams(logit_bias=((3, 2.0), (7, -100.0)), bad_words=((5,), (6, 7), (1, 2, 3)), logprob_token_ids=(4, 0)),
    VOCAB,
)


def sizes(place: Place) -> tuple[int, int]:
    """Rows and vocabulary; the small vocabulary is no multiple of a tile."""
    return place.pick(ROWS, 5), place.pick(VOCAB, 1003)


def logits_at(place: Place) -> Tensor:
    """Logits with the spread of a model's, NaN in the last row."""
    rows, vocab = sizes(place)
    logits = place.randn(rows, vocab, dtype=torch.float32) * 3
    logits[-1, 7] = float("nan")
    return logits


def chosen(kind: str) -> Prepare:
    def case(place: Place) -> Trial:
        rows, vocab = sizes(place)
        logits = logits_at(place)
        settings = [KINDS[kind][i % len(KINDS[kind])] for i in range(rows)]
        seeds, positions = [977 * i + 5 for i in range(rows)], [i % 11 for i in range(rows)]
        tokens = place.empty(rows, dtype=torch.int32)
        scratch = SampleScratch(*(place.empty(*shape, dtype=dtype) for shape, dtype in sample_shapes(rows, vocab)))
        floats = np.array(settings, np.float32).view(np.int32)
        columns = [(seeds[i], 0, *floats[i, :2], settings[i][2], floats[i, 3]) for i in range(rows)]
        sampling = torch.tensor(np.array(columns[::-1], np.int32), device=place.device)
        row, position = place.ints(range(rows - 1, -1, -1)), place.ints(positions)
        history = place.empty(rows, 11, dtype=torch.int32)

        def launch() -> None:
            choose(
                logits, scratch, tokens, row=row, position=position, sampling=sampling, history=history,
            )  # fmt: skip

        def pairs() -> list[Pair]:
            expected = [
                rule.choose(row, temperature=t, top_p=p, top_k=k, min_p=m, u=rule.uniform(seeds[i], positions[i]))
                for i, (row, (t, p, k, m)) in enumerate(zip(logits.cpu().numpy()[:-1], settings[:-1], strict=True))
            ]
            written = history[row.long(), position.long()]
            return [(found, torch.tensor([*expected, -1], dtype=torch.int32)) for found in (tokens, written)]

        # A GPU's exponential differs from numpy's in its last bit, which changes a sample once in many thousand rows.
        return Trial(launch, pairs, 0.0 if place.tiny or kind == "greedy" else 1 / ROWS, size_of(logits))

    return case


def reported(count: int, *, by_name: bool = False) -> Prepare:
    def case(place: Place) -> Trial:
        rows, vocab = sizes(place)
        logits = logits_at(place)[:-1]
        tokens = torch.randint(0, vocab, (rows - 1,), device=place.device, dtype=torch.int32)
        wanted = place.ints([count] * (rows - 1))
        rules = torch.tensor(np.tile(RULES.packed(), (rows - 1, 1)), device=place.device)
        named = NamedIds(place.ints([1] * (rows - 1)), place.ints(range(rows - 1)), rules) if by_name else None
        integers = place.empty(rows - 1, 1 + count, dtype=torch.int32)
        floats = place.empty(rows - 1, 1 + count, dtype=torch.float32)
        shapes = report_shapes(rows - 1, vocab, MAX_LOGPROBS)
        scratch = ReportScratch(*(place.empty(*shape, dtype=dtype) for shape, dtype in shapes))

        def pairs() -> list[Pair]:
            found = [
                rule.log_probabilities(row, int(token), count, RULES.report_ids if by_name else None)
                for row, token in zip(logits.cpu().numpy(), tokens.tolist(), strict=True)
            ]
            ints = [torch.tensor([rank, *top[0].tolist()], dtype=torch.int32) for _, rank, top in found]
            values = [torch.tensor([value, *top[1].tolist()], dtype=torch.float32) for value, _, top in found]
            return [(integers, torch.stack(ints)), (floats, torch.stack(values))]

        return Trial(
            lambda: log_probabilities(logits, tokens, wanted, integers, floats, scratch, named=named),
            pairs,
            1e-5,
            size_of(logits),
        )

    return case


def penalized(place: Place) -> Trial:
    rows, vocab = sizes(place)
    logits = place.randn(rows, vocab, dtype=torch.float32) * 3
    before = logits.cpu().clone() if logits.device.type != "meta" else logits
    count, rng = place.pick(500, 7), np.random.default_rng(0)
    adjusts = [
        LogitAdjust(
            prompt,
            output,
            presence_penalty=0.2,
            frequency_penalty=0.1,
            repetition_penalty=1.1,
            banned=banned,
            rules=RULES,
        )
        for prompt, output, banned in (
            [rng.integers(0, vocab, length).astype(np.int32) for length in (count, count, 3)] for _ in range(rows)
        )
    ]
    history = torch.tensor(np.stack([np.concatenate([a.prompt, a.output]) for a in adjusts]), device=place.device)
    banned = torch.tensor(np.concatenate([a.banned for a in adjusts]), device=place.device)
    factors = np.array([1.1, 0.1, 0.2], np.float32).view(np.int32).tolist()
    header = [[row, row, 0, count, 2 * count, 3 * row, 3 * row + 3, *factors, 2 * count, 1] for row in range(rows)]
    headers = torch.tensor(header, dtype=torch.int32, device=place.device)
    rules = torch.tensor(np.tile(RULES.packed(), (rows, 1)), device=place.device)
    counts = torch.zeros((rows, vocab), dtype=torch.int32, device=place.device)

    def pairs() -> list[Pair]:
        expected = [rule.adjust_logits(row, adjust) for row, adjust in zip(before.numpy(), adjusts, strict=True)]
        return [(logits, torch.from_numpy(np.stack(expected))), (counts, torch.zeros_like(counts))]

    return Trial(
        lambda: penalize(logits, headers, history, rules, banned, counts), pairs, 1e-6, 3 * 4 * history.numel()
    )


def masked(place: Place, rows: int, vocab: int) -> Trial:
    random = np.random.default_rng(vocab)
    allowed = random.random((rows, -(-vocab // 32) * 32)) < 0.3
    mask = torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32)).to(place.device)
    logits = place.randn(rows, vocab, dtype=torch.float32)
    banned = torch.from_numpy(~allowed[:, :vocab]).to(place.device)
    expected = logits.masked_fill(banned, float("-inf"))
    pairs = torch.arange(rows, device=place.device, dtype=torch.int32)[:, None].repeat(1, 2)
    return Trial(lambda: apply_bitmask(logits, mask, pairs), lambda: [(logits, expected)], 0.0, size_of(mask, logits))


CASES = [
    *(Case("choose", f"{ROWS}x{VOCAB} {kind}", chosen(kind), quick=kind == "cut") for kind in KINDS),
    *(Case("log_probs", f"{ROWS}x{VOCAB} best {count}", reported(count), quick=count == 20) for count in (0, 20)),
    Case("log_probs", f"{ROWS}x{VOCAB} named 2", reported(2, by_name=True), quick=True),
    Case("penalize", f"{ROWS}x{VOCAB}", penalized, quick=True),
    Case("bitmask", f"{ROWS}x{VOCAB}", lambda place: masked(place, *sizes(place)), quick=True),
]
