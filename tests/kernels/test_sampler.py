"""The sampler's kernels choose, token for token, what the rule in numpy chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.backends.cuda.kernels.sample import choose
from octavo_inference.backends.cuda.kernels.sampler_scratch import SampleScratch, sample_shapes
from octavo_inference.backends.cuda.kernels.vocab_reductions import edge, first_past
from octavo_inference.backends.cuda.sampling import sampler_bytes
from octavo_inference.core.gather import LogitAdjust, SampleRows
from octavo_inference.core.logit_rules import logit_rules
from octavo_inference.core.model_input import SAMPLING, Float32, StepResult
from octavo_inference.core.request import SamplingParams
from octavo_inference.core.sampling import sample

from .chooser import Chooser

INF = float("inf")


@dataclass(frozen=True, slots=True)
class Row:
    """One row's parameters, neutral by default."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0
    logprobs: int = -1
    adjust: LogitAdjust | None = None
    report_ids: tuple[int, ...] = ()


def sample_rows(rows: list[Row]) -> SampleRows:
    def column(name: str, dtype: type[np.generic]) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], dtype)

    return SampleRows(
        row=np.arange(len(rows), dtype=np.int32),
        position=column("position", np.int32),
        seed=column("seed", np.uint64),
        temperature=column("temperature", np.float32),
        top_p=column("top_p", np.float32),
        top_k=column("top_k", np.int32),
        min_p=column("min_p", np.float32),
        logprobs=column("logprobs", np.int32),
        adjust=[row.adjust for row in rows],
        report_ids=[np.array(row.report_ids, np.int32) if row.report_ids else None for row in rows],
    )


def both(logits: Float32, rows: list[Row]) -> tuple[StepResult, StepResult]:
    """What the kernels choose, and what the rule does."""
    given = sample_rows(rows)
    positions = int(given.position.max(initial=0)) + 1
    found = Chooser(logits.shape[1], len(rows), positions).sample(logits, given)
    return found, sample(logits, given)


def scratch_of(rows: int, vocab: int, **sizes: int) -> SampleScratch[torch.Tensor]:
    """Scratch memory with something in it."""
    shapes = sample_shapes(rows, vocab, **sizes)
    return SampleScratch(*(torch.randint(0, 9999, shape).to(dtype) for shape, dtype in shapes))


def logits_of(kind: str, vocab: int, seed: int) -> Float32:
    random = np.random.default_rng(seed)
    logits = (random.standard_normal(vocab) * 3).astype(np.float32)
    if kind == "tied":
        logits = np.round(logits)
    elif kind == "flat":
        logits[:] = -1.5
    elif kind == "sparse":  # as after a grammar's mask
        logits[random.random(vocab) < 0.9] = -np.inf
        logits[vocab // 2] = 1.0
    return logits


row_strategy = st.builds(
    Row,
    temperature=st.sampled_from([0.01, 0.7, 1.0, 2.5]),
    top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0, width=32, exclude_max=True)),
    top_k=st.sampled_from([0, 0, 1, 2, 7, 40, 5000]),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0, width=32)),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 9000),
)


@settings(max_examples=scaled(25))
@given(
    vocab=st.sampled_from([32, 99, 1000]),
    cases=st.lists(st.tuples(row_strategy, st.sampled_from(["normal", "tied", "flat", "sparse"])), max_size=3),
    seed=st.integers(0, 1000),
)
def test_any_row_gets_the_rules_token(vocab: int, cases: list[tuple[Row, str]], seed: int) -> None:
    logits = np.stack([logits_of("normal", vocab, seed), *(logits_of(kind, vocab, seed) for _, kind in cases)])
    found, expected = both(logits, [Row(seed=seed), *(row for row, _ in cases)])
    assert found.tokens.tolist() == expected.tokens.tolist()


EDGES: list[tuple[str, list[float], Row, int | None]] = [
    ("greedy takes the lowest of equals", [1, 3, 3, 3], Row(temperature=0), 1),
    ("greedy sees minus infinity", [-INF, -INF, -5, -INF], Row(temperature=0), 2),
    ("one that is possible", [-INF, -INF, -5, -INF], Row(top_p=0.5, top_k=3), 2),
    ("none that is possible", [-INF] * 4, Row(), -2),
    ("a NaN", [1, 2, float("nan"), 0], Row(), -1),
    ("a NaN, greedily", [float("nan"), 2, 1, 0], Row(temperature=0), -1),
    ("infinity", [1, INF, 2, 0], Row(temperature=0), -1),
    ("top_k of one", [0, 1, 2, 1], Row(top_k=1, temperature=9), 2),
    ("top_p that is tiny", [0, 1, 2, 1], Row(top_p=1e-6, temperature=9), 2),
    ("top_p of nothing", [0, 2, 2, 1], Row(top_p=0.0, temperature=9), 1),
    ("min_p of one", [0, 1, 2, 1], Row(min_p=1.0, temperature=9), 2),
    ("cold", [0, 1, 2, 1.99], Row(temperature=1e-4), 2),
    ("ties at the edge of top-k stay", [2, 1, 1, 0], Row(top_k=2), None),
    ("ties at the edge of top-p go by id", [1, 1, 1, 1], Row(top_p=0.5), None),
    ("both", [0, 0, 1, 1], Row(top_k=3, top_p=0.9, min_p=0.1), None),
    ("hot", [0, 1, 2, 3], Row(temperature=1e6), None),
]


def test_edges(record: Callable[..., None]) -> None:
    for seed in range(2):
        rows = [replace(row, seed=seed) for _, _, row, _ in EDGES]
        logits = np.array([values for _, values, _, _ in EDGES], np.float32)
        with np.errstate(invalid="ignore"):
            found, expected = both(logits, rows)
        for (name, _, _, token), chosen, ruled in zip(EDGES, found.tokens, expected.tokens, strict=True):
            assert chosen == ruled, name
            assert token is None or chosen == token, name
    record("sample: tokens that differ", f"{len(EDGES)} edge cases", torch.float32, 0.0)


@pytest.mark.parametrize("candidates", [99, 5])
@pytest.mark.parametrize("kind", ["normal", "tied"])
def test_a_vocabulary_of_several_tiles(kind: str, candidates: int, record: Callable[..., None]) -> None:
    """99 ids in tiles of 32; the last is not full, and ties lie on both sides of each seam.

    With room for five candidates, a row with more is searched as a whole.
    """
    row = logits_of(kind, 99, 5)
    row[[72, 40]] = row.max() + 1
    limits = [Row(temperature=0), Row(), Row(top_p=0.0), Row(top_k=9, top_p=0.8), Row(top_p=0.9), Row(top_k=2)]
    rows = [replace(limit, seed=i) for i, limit in enumerate(limits)]
    logits = np.tile(row, (len(limits), 1))
    assert in_tiles(logits, rows, candidates) == sample(logits, sample_rows(rows)).tokens.tolist()
    record("sample: tokens that differ", f"{logits.shape} in tiles of 32", torch.float32, 0.0)


@settings(max_examples=scaled(25))
@given(
    cases=st.lists(
        st.tuples(row_strategy, st.sampled_from(["normal", "tied", "flat", "sparse"])), min_size=1, max_size=3
    ),
    candidates=st.sampled_from([1, 20, 300]),
    seed=st.integers(0, 1000),
)
def test_any_row_of_several_tiles_gets_the_rules_token(
    cases: list[tuple[Row, str]], candidates: int, seed: int
) -> None:
    logits = np.stack([logits_of(kind, 300, seed) for _, kind in cases])
    rows = [row for row, _ in cases]
    assert in_tiles(logits, rows, candidates) == sample(logits, sample_rows(rows)).tokens.tolist()


def test_tiles_without_a_choice() -> None:
    """A NaN, an infinity or nothing but -inf in any of the tiles, and a maximum in the last."""
    logits = np.stack([logits_of("normal", 99, seed) for seed in range(5)])
    logits[0, 40], logits[1, 98], logits[2], logits[3, :97], logits[4, [50, 98]] = np.nan, np.inf, -INF, -INF, 99
    for row in (Row(temperature=0), Row(top_k=1), Row(top_p=0.0)):
        with np.errstate(invalid="ignore"):
            expected = sample(logits, sample_rows([row] * 5)).tokens.tolist()
        assert expected[:3] == [-1, -1, -2]
        assert in_tiles(logits, [row] * 5, 20) == expected


def in_tiles(logits: Float32, rows: list[Row], candidates: int) -> list[int]:
    """Tokens, with tiles of 32 ids, and room for so many candidates."""
    count, vocab = logits.shape
    given, positions = sample_rows(rows), max(row.position for row in rows) + 1
    chooser = Chooser(vocab, count, positions)
    chooser.sample(logits, given)
    table = chooser.rows.table
    assert table.sampling.shape == (count + 1, len(SAMPLING))
    tokens, row = torch.empty(count, dtype=torch.int32), torch.arange(count, dtype=torch.int32)
    at = {"row": row, "position": torch.from_numpy(given.position), "sampling": table.sampling}
    scratch = scratch_of(count, vocab, tile=32, candidates=candidates)
    choose(torch.from_numpy(logits), scratch, tokens, tile=32, history=table.tokens, **at)
    assert table.tokens[row, given.position].tolist() == tokens.tolist(), "written into the row table, too"
    return tokens.tolist()


@pytest.mark.parametrize(
    ("logits", "limits", "kept"),
    [
        # Ties that are cut stand before a heavier id: a sum that had them in it would end elsewhere.
        ([1, 1, 1, 1, 1.1], Row(top_p=0.5), {0, 1, 4}),
        ([2, 1, 1, 1, 2], Row(min_p=0.5), {0, 4}),
    ],
)
def test_what_is_dropped_has_no_part_in_the_draw(logits: list[float], limits: Row, kept: set[int]) -> None:
    rows = [replace(limits, seed=seed) for seed in range(12)]
    found, expected = both(np.tile(np.array(logits, np.float32), (len(rows), 1)), rows)
    assert set(expected.tokens.tolist()) == kept
    assert found.tokens.tolist() == expected.tokens.tolist()


@triton.jit
def _edge(weights, limit, given, vocab, TILE: tl.constexpr):
    mass = tl.load(given)
    goal = tl.load(given + 1)
    found, _, _, _, _ = edge(weights, vocab, tl.load(weights), vocab, mass, goal, False, TILE)
    tl.store(limit, found)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_an_edge_is_found_among_weights_a_unit_in_the_last_place_apart(k: int) -> None:
    ascending = torch.tensor([5, 0x3F7FFFFD, 0x3F7FFFFE, 0x3F7FFFFF, 0x3F800000], dtype=torch.int32).view(torch.float32)
    limit = torch.empty(1)
    given = torch.tensor([float(ascending.double().sum()), k], dtype=torch.float64)
    _edge[(1,)](ascending, limit, given, 5, TILE=4)
    assert limit.item() == ascending[5 - k].item()


@triton.jit
def _first_past(weights, token, vocab, goal, TILE: tl.constexpr):
    tl.store(token, first_past(weights, vocab, 0.0, vocab, tl.load(goal), False, TILE))


@pytest.mark.parametrize(("goal", "token"), [(0.0, 2), (1.0, 5), (2.5, 5), (4.0, 5), (7.0, 5)])
def test_a_draw_that_rounding_puts_behind_the_sum_takes_the_last_kept_id(goal: float, token: int) -> None:
    """The last tile, and the end of the one before, have no weight."""
    weights, found = torch.tensor([0.0, 0, 1, 0, 0, 3, 0, 0, 0, 0]), torch.empty(1, dtype=torch.int32)
    _first_past[(1,)](weights, found, len(weights), torch.tensor([goal], dtype=torch.float64), TILE=4)
    assert found.item() == token


def test_draws_follow_the_distribution(record: Callable[..., None]) -> None:
    """Chi-square of one seed's draws over positions, at a level of one in 10,000."""
    draws = 150
    logits = np.tile(np.log(np.array([0.3, 0.05, 0.25, 0.1, 0.3], np.float32)), (draws, 1))
    rows = sample_rows([Row(seed=7, position=i) for i in range(draws)])
    found = Chooser(5, draws, positions=draws).sample(logits, rows)
    shares, expected = np.bincount(found.tokens, minlength=5) / draws, np.array([0.3, 0.05, 0.25, 0.1, 0.3])
    assert draws * ((shares - expected) ** 2 / expected).sum() < 23.5  # 4 degrees of freedom
    record("sample: shares of tokens", f"{draws} draws", torch.float32, float(np.abs(shares - expected).max()))


def test_a_batch_can_be_launched_before_the_one_before_is_collected() -> None:
    chooser = Chooser(32, 4)
    logits = [logits_of("normal", 32, seed)[None] for seed in (1, 2)]
    rows = sample_rows([Row(temperature=0, logprobs=2)])
    launched = [chooser.launch(values, rows) for values in logits]
    for values, batch in zip(logits, launched, strict=True):
        expected, found = sample(values, rows), batch.collect()
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert found.rank.tolist() == [1]
        top, ruled = found.top[0], expected.top[0]
        assert top is not None
        assert ruled is not None
        assert top[0].tolist() == ruled[0].tolist()


def rules(vocab: int, i: int) -> LogitAdjust:
    """Every kind of rule, alone and with the others and with penalties, over the same output."""
    words = [[3], [9, 4], [8, 9, 5], [1, 8, 9, 6], [9, 9]]
    given = SamplingParams(
        logit_bias={2: 4.0, 7: -100.0, vocab - 1: 2.0} if i % 2 else {},
        allowed_token_ids=range(i, vocab, 3) if i % 3 == 0 else (),
        bad_words=words if i % 5 < 3 else (),
    )
    output, banned = np.array([1, 8, 9], np.int32), np.array([0, 11] if i % 4 == 0 else [], np.int32)
    prompt = np.array([8, 9, 7], np.int32)
    return LogitAdjust(prompt, output, 0.3 * (i % 2), 0.0, 1.2, banned, logit_rules(given, vocab))


@pytest.mark.parametrize("vocab", [32, 99])
def test_rules_of_requests_beside_rows_without_any(vocab: int, record: Callable[..., None]) -> None:
    logits = np.stack([logits_of("normal", vocab, seed) for seed in range(40)])
    rows = [
        Row(
            temperature=0.8 * (i % 3),
            seed=i,
            logprobs=2 if i % 4 == 1 else 3 if i % 4 == 2 else -1,
            adjust=rules(vocab, i) if i % 3 else None,
            report_ids=(5, 0, 7) if i % 4 == 2 else (),
        )
        for i in range(40)
    ]
    given = sample_rows(rows)
    found, expected = Chooser(vocab, 40).sample(logits, given), sample(logits, given)
    assert found.tokens.tolist() == expected.tokens.tolist()
    for mine, other in zip(found.top, expected.top, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert mine[0].tolist() == other[0].tolist()
            np.testing.assert_allclose(mine[1], other[1], atol=2e-6)
    np.testing.assert_allclose(found.logprob, expected.logprob, atol=2e-6)
    assert found.rank.tolist() == expected.rank.tolist()
    record("sample: tokens that differ", f"{logits.shape} with rules", torch.float32, 0.0)


def test_log_probabilities_are_of_the_model_and_not_of_the_rules() -> None:
    logits = logits_of("normal", 32, 0)[None]
    only = int(logits.argmin())
    allowed = logit_rules(SamplingParams(allowed_token_ids=[only]), 32)
    nothing = np.empty(0, np.int32)
    adjust = LogitAdjust(nothing, nothing, 0.0, 0.0, 1.0, nothing, allowed)
    found = Chooser(32, 1).sample(logits, sample_rows([Row(logprobs=1, adjust=adjust)]))
    plain = Chooser(32, 1).sample(logits, sample_rows([Row(temperature=0, logprobs=1)]))
    assert found.tokens.tolist() == [only]
    assert found.rank.tolist() == [32]
    assert found.top[0][1].tolist() == plain.top[0][1].tolist()  # type: ignore[index]


def test_no_rows() -> None:
    found = Chooser(32, 4).sample(np.empty((0, 32), np.float32), sample_rows([]))
    assert found.tokens.tolist() == []
    assert found.top == []


def test_memory_is_what_was_said() -> None:
    sampler = Chooser(99, 5).sampler
    held = [value for value in vars(sampler).values() if isinstance(value, torch.Tensor)]
    said = sampler_bytes(vocab=99, max_rows=5, max_logprobs=20)
    assert sum(t.nbytes for t in (*held, *sampler._scratch, *sampler._reports)) == said
