"""Steps over the device's row table, each launched before the tokens of the one before are known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.buffers import StepLimits, allocate, buffer_shapes
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.rows import DeviceRows
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.core.backend import Backend
from octavo_inference.core.gather import Batch, LogitAdjust, SampleRows
from octavo_inference.core.model_input import Penalty, RowChange, RowSamples, RowStep, StepResult

from ..unit.engine.echo import CONFIG, tiny_model  # noqa: TID252 -- tests are no package

BLOCK, LONGEST = 8, 24


@dataclass
class Asked:
    """A request of the tests: its prompt, its row and blocks of its own, and how its tokens are chosen."""

    row: int
    prompt: list[int]
    temperature: float = 0.0
    seed: int = 0
    penalties: tuple[float, float, float] | None = None  # repetition, frequency, presence
    banned: tuple[int, ...] = ()
    logprobs: int = -1
    tokens: list[int] = field(default_factory=list)
    reports: list[tuple[float, list[int]]] = field(default_factory=list)

    @property
    def blocks(self) -> list[int]:
        return [3 * self.row + 2, 3 * self.row, 3 * self.row + 1]

    def take(self, result: StepResult, i: int) -> None:
        self.tokens.append(int(result.tokens[i]))
        best = result.top[i]
        self.reports.append((round(float(result.logprob[i]), 4), [] if best is None else best[0].tolist()))


def step_of(asked: list[Asked], made: int, *, enter: bool) -> RowStep:
    """Read the prompts, or the token behind them that `made` steps have left, and choose the next one of each."""
    changes = []
    for a in asked if enter else ():
        seed = np.array([a.seed], "<u8").view(np.int32)
        heat, share = np.array([a.temperature, 0.9], np.float32).view(np.int32)
        sampling = np.array([*seed, heat, share, 0, 0], np.int32)
        changes.append(RowChange("blocks", a.row, 0, np.array(a.blocks, np.int32)))
        changes += [
            RowChange("tokens", a.row, 0, np.array(a.prompt, np.int32)),
            RowChange("sampling", a.row, 0, sampling),
        ]
    lengths = [len(a.prompt) + made for a in asked]
    counts = [n if enter else 1 for n in lengths]
    rows = np.array([a.row for a in asked], np.int32)
    starts = np.cumsum([0, *counts], dtype=np.int32)
    penalties = [
        None
        if a.penalties is None
        else Penalty(len(a.prompt), n, a.penalties[2], a.penalties[1], a.penalties[0], np.array(a.banned, np.int32))
        for a, n in zip(asked, lengths, strict=True)
    ]
    wanted = np.array([a.logprobs for a in asked], np.int32)
    length = np.array(lengths, np.int32)
    return RowStep(changes, rows, starts, length, RowSamples(starts[1:] - 1, rows, length, wanted, penalties))


def run(backend: Backend, asked: list[Asked], count: int) -> None:
    """`count` tokens of each, a step in advance of what is known."""
    launched = [backend.launch(step_of(asked, 0, enter=True))]
    for made in range(1, count):
        launched.append(backend.launch(step_of(asked, made, enter=False)))
        result = launched.pop(0).collect()
        for i, a in enumerate(asked):
            a.take(result, i)
    result = launched.pop().collect()
    for i, a in enumerate(asked):
        a.take(result, i)


def by_the_reference(backend: ReferenceBackend, asked: list[Asked], count: int) -> None:
    """The same, whole prompts anew for each token."""
    for _ in range(count):
        for a in asked:
            tokens = np.array(a.prompt + a.tokens, np.int32)
            at = np.arange(len(tokens), dtype=np.int32)
            table = np.array([a.blocks], np.int32)
            sample = SampleRows.greedy(at[-1:], at[-1:] + 1)
            sample.temperature[:], sample.top_p[:], sample.seed[:], sample.logprobs[:] = (
                a.temperature,
                0.9,
                a.seed,
                a.logprobs,
            )
            if a.penalties is not None:
                repetition, frequency, presence = a.penalties
                parts = (np.array(part, np.int32) for part in (a.prompt, a.tokens))
                banned = np.array(a.banned, np.int32)
                sample.adjust[0] = LogitAdjust(*parts, presence, frequency, repetition, banned)
            start = np.array([0, len(tokens)], np.int32)
            slots = (table[:, at // BLOCK] * BLOCK + at % BLOCK).astype(np.int32)
            a.take(backend.step(Batch(tokens, at, slots, start, start[1:], table[None], sample)), 0)


def cuda(rows: int = 6) -> CudaBackend:
    return CudaBackend.create(
        *tiny_model(), device=find_device(), num_blocks=20, block_size=BLOCK, max_batched_tokens=64, max_running=rows,
        max_model_len=LONGEST, dtype=torch.float32,
    )  # fmt: skip


def requests() -> list[Asked]:
    return [
        Asked(4, [5, 9, 11], logprobs=3),
        Asked(0, [7] * 9, temperature=1.0, seed=2**64 - 3),
        Asked(2, [1, 2, 3, 4], temperature=1.5, seed=2**33 + 1, penalties=(1.3, 0.4, 0.2), banned=(3, 44)),
        Asked(5, [60, 1], penalties=(5.0, 0.0, 0.0)),
    ]


def test_steps_launched_ahead_give_the_tokens_of_the_reference() -> None:
    ahead, expected, again = requests(), requests(), [replace(a, row=5 - a.row) for a in requests()[::-1]]
    backend = cuda()
    run(backend, ahead, 4)
    by_the_reference(
        ReferenceBackend(*tiny_model(), num_blocks=20, block_size=BLOCK, max_model_len=LONGEST), expected, 4
    )
    assert [(a.tokens, a.reports) for a in ahead] == [(a.tokens, a.reports) for a in expected]
    assert len({tuple(a.tokens) for a in expected}) == len(expected), "each is told from the others"
    # The rows again, with other sequences in them, and longer ones before.
    run(backend, again, 2)
    assert [(a.tokens, a.reports) for a in again[::-1]] == [(a.tokens[:2], a.reports[:2]) for a in expected]


def test_a_sequence_without_numbers_does_no_harm() -> None:
    """Its token is -1 in the table, too; the step behind it is on its way, and the one after penalises what it said."""
    config, weights = tiny_model()
    broken = weights.embedding.data.copy()
    broken[13] = np.nan if broken.dtype == np.float32 else 0x7FC0
    weights = replace(weights, embedding=replace(weights.embedding, data=broken), lm_head=weights.embedding)
    backend = CudaBackend.create(
        replace(config, tied_embeddings=False), weights, device=find_device(), num_blocks=20, block_size=BLOCK,
        max_batched_tokens=64, max_running=6, max_model_len=LONGEST, dtype=torch.float32,
    )  # fmt: skip
    good, bad = Asked(1, [5, 9, 11]), Asked(3, [5, 13], penalties=(1.2, 0.5, 0.5))
    alone = Asked(1, [5, 9, 11])
    run(backend, [good, bad], 3)
    run(cuda(), [alone], 3)
    assert bad.tokens == [-1] * 3
    assert good.tokens == alone.tokens


def test_cleared_blocks_are_zero() -> None:
    backend = cuda()
    run(backend, requests(), 1)
    before = backend.to_host(range(20))
    backend.clear_blocks([0, 14])
    after = backend.to_host(range(20))
    assert before[[0, 14]].any(axis=1).all()
    assert not after[[0, 14]].any()
    others = [block for block in range(20) if block not in {0, 14}]
    assert np.array_equal(before[others], after[others])


change = st.builds(
    lambda field_, row, column, length: (field_, row, column, length),
    st.sampled_from(["tokens", "blocks", "sampling"]),
    st.integers(0, 2),
    st.integers(0, 5),
    st.one_of(st.integers(0, 4), st.integers(0, 3000)),
)


@settings(max_examples=scaled(30), deadline=None)
@given(st.lists(change, max_size=12), st.sampled_from([1500, 6000, 1 << 16]))
def test_changes_are_made_in_order_whatever_their_size(given_: list[tuple[str, int, int, int]], room: int) -> None:
    limits = StepLimits(tokens=8, rows=2, positions=3000, block_size=16, processors=1, vocab=1000)
    buffers = allocate(buffer_shapes(CONFIG, limits, torch.float32), torch.device("cpu"))
    rows = DeviceRows(buffers.table, torch.zeros(room, dtype=torch.int32), limits)
    expected = {name: getattr(rows.table, name).numpy().copy() for name in ("tokens", "blocks", "sampling")}
    changes = []
    for number, (name, row, column, length) in enumerate(given_):
        target = expected[name][row].reshape(-1)[column : column + length]
        target[:] = np.arange(len(target)) + 10_000 * (number + 1)
        changes.append(RowChange(name, row, column, target.copy()))  # type: ignore[arg-type]  # one of the three
    rows.apply(changes)
    for name, wanted in expected.items():
        assert np.array_equal(getattr(rows.table, name).numpy(), wanted)


def test_a_change_behind_the_end_of_a_row_is_refused() -> None:
    limits = StepLimits(tokens=8, rows=2, positions=30, block_size=16, processors=1, vocab=1000)
    table = torch.zeros(buffer_shapes(CONFIG, limits, torch.float32).table.shape, dtype=torch.int32)
    rows = DeviceRows(table, torch.zeros(100, dtype=torch.int32), limits)
    with pytest.raises(ValueError, match="a change of blocks up to column 3 of a row; a row has 2"):
        rows.apply([RowChange("blocks", 0, 1, np.array([5, 6], np.int32))])
    assert not table.any()
