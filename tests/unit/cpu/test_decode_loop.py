"""The native loop of decode steps gives the tokens of single steps, and ends where it should."""

from __future__ import annotations

import os
import random
import socket
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.model_input import DecodeRun, RowSamples, RowStep, RowTable, sampling_columns
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Weights

from .test_forward import TINY, create, random_weights

_STEPS = 8
_MODEL = replace(TINY, hidden=96, intermediate=128)
_PROMPTS = [3, 31, 40]


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights(_MODEL, np.random.default_rng(0))


def launched(backend: CpuBackend, table: RowTable, total: list[int], run: DecodeRun | None) -> np.ndarray:
    """Tokens of a launch that decodes the last of each row's `total` tokens: [steps, rows]."""
    count = len(total)
    rows = np.arange(count, dtype=np.int32)
    lengths = np.array(total, np.int32)
    sample = RowSamples(rows, rows, lengths, np.full(count, -1, np.int32), [None] * count)
    step = RowStep([], rows, np.arange(count + 1, dtype=np.int32), lengths, sample, table, run=run)
    return np.atleast_2d(backend.launch(step).collect().tokens)


def table_of(temperature: float = 0.0) -> RowTable:
    """Rows of three sequences that cross a border of blocks at different steps."""
    rng = np.random.default_rng(1)
    table = RowTable.zeros(len(_PROMPTS), 256, 32, _MODEL.vocab)
    table.tokens[:] = rng.integers(0, _MODEL.vocab, table.tokens.shape)
    table.blocks[:] = rng.permutation(24).reshape(len(_PROMPTS), 8)
    for row in range(len(_PROMPTS)):
        table.sampling[row] = sampling_columns(seed=row, temperature=temperature, top_p=0.95 if row else 1.0)
    return table


def prefilled(weights: Weights, kernels: Kernels, table: RowTable) -> CpuBackend:
    backend = create(_MODEL, weights, kernels)
    for length in range(1, max(_PROMPTS)):
        launched(backend, table, [min(length, prompt) for prompt in _PROMPTS], None)
    return backend


def run_of(
    steps: int = _STEPS, seconds: float = 60.0, fd: int = -1, ends: tuple[tuple[int, ...], ...] = ()
) -> DecodeRun:
    given = ends or ((),) * len(_PROMPTS)
    starts = np.cumsum([0, *map(len, given)]).astype(np.int32)
    return DecodeRun(steps, seconds, fd, np.array([token for each in given for token in each], np.int32), starts)


def one_by_one(backend: CpuBackend, table: RowTable) -> np.ndarray:
    """The tokens of single steps, which are written to the table."""
    found = []
    for step in range(_STEPS):
        [tokens] = launched(backend, table, [prompt + step for prompt in _PROMPTS], None)
        for row, prompt in enumerate(_PROMPTS):
            table.tokens[row, prompt + step] = tokens[row]
        found.append(tokens.copy())
    return np.stack(found)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_tokens_are_those_of_single_steps(weights: Weights, kernels: Kernels, temperature: float) -> None:
    table = table_of(temperature)
    backend = prefilled(weights, kernels, table)
    found = launched(backend, table, _PROMPTS, run_of())
    np.testing.assert_array_equal(found, one_by_one(backend, table))


def test_a_run_ends_where_a_token_ends_its_own_sequence(weights: Weights, kernels: Kernels) -> None:
    table = table_of(2.0)
    backend = prefilled(weights, kernels, table)
    expected = one_by_one(backend, table)
    end = int(expected[4, 1])
    first = 1 + expected[:, 1].tolist().index(end)
    found = launched(backend, table, _PROMPTS, run_of(ends=((), (end, 5), ())))
    np.testing.assert_array_equal(found, expected[:first])
    others = tuple(token for token in range(_MODEL.vocab) if token not in expected[:, 0])
    assert len(launched(backend, table, _PROMPTS, run_of(ends=(others, (), ())))) == _STEPS


def test_a_run_ends_with_a_token_that_is_none(weights: Weights, kernels: Kernels) -> None:
    table = table_of()
    backend = prefilled(weights, kernels, table)
    backend._pools[0].view(np.float32)[table.blocks[2, 1]] = np.nan
    found = launched(backend, table, _PROMPTS, run_of())
    assert len(found) == 1
    assert found[0, 2] == -1


def test_a_run_ends_when_its_time_is_up(weights: Weights, kernels: Kernels) -> None:
    table = table_of()
    backend = prefilled(weights, kernels, table)
    assert [len(launched(backend, table, _PROMPTS, run_of(seconds=limit))) for limit in (0.0, -1.0)] == [1, 1]


def test_a_run_ends_when_a_message_arrives_or_the_peer_has_gone(weights: Weights, kernels: Kernels) -> None:
    table = table_of()
    backend = prefilled(weights, kernels, table)
    ours, theirs = socket.socketpair()
    with ours:
        run = run_of(fd=ours.fileno())
        assert len(launched(backend, table, _PROMPTS, run)) == _STEPS
        with theirs:
            os.write(theirs.fileno(), b"x")
            assert len(launched(backend, table, _PROMPTS, run)) == 1
            assert ours.recv(9) == b"x"
            assert len(launched(backend, table, _PROMPTS, run)) == _STEPS
        assert len(launched(backend, table, _PROMPTS, run)) == 1


@pytest.mark.parametrize("seed", range(4))
def test_an_engine_answers_as_with_single_steps(weights: Weights, kernels: Kernels, seed: int) -> None:
    config: ModelConfig = replace(_MODEL, eos_token_ids=(3,), digest="loop")
    found = []
    for runs in (False, True):
        chance = random.Random(seed)
        backend = create(config, weights, kernels, num_blocks=14, max_running=5)
        backend.decode_runs = runs
        engine = Engine(backend, config, EngineLimits(128, 5, 64, 99), clock=count(0, 1e-6).__next__)
        tokens: dict[tuple[str, int], list[int]] = {}
        for i in range(12):
            sampling = SamplingParams(
                max_tokens=chance.randint(1, 40),
                temperature=chance.choice([0.0, 1.0]),
                top_p=chance.choice([1.0, 0.9]),
                top_k=chance.choice([0, 20]),
                min_tokens=0,
                seed=i,
                n=chance.choice([1, 1, 2]),
                stop_token_ids=tuple(chance.sample(range(_MODEL.vocab), 3)),
                presence_penalty=chance.choice([0.0, 0.0, 0.5]),
                frequency_penalty=chance.choice([0.0, 0.0, 0.2]),
                repetition_penalty=chance.choice([1.0, 1.0, 1.3]),
                logit_bias=chance.choice([(), ((chance.randrange(_MODEL.vocab), 4.0),)]),
                bad_words=chance.choice([(), ((5,), tuple(chance.choices(range(9), k=2)))]),
                logprobs=chance.choice([None] * 5 + [2]),
            )
            prompt = [chance.randrange(_MODEL.vocab) for _ in range(chance.randint(1, 60))]
            engine.submit(Request(id=str(i), tokens=prompt, sampling=sampling))
            for _ in range(chance.randint(0, 4)):
                _take(engine, tokens)
        while engine.has_work:
            _take(engine, tokens)
        engine.check()
        assert (engine.heartbeat < engine.counters.steps().count) == runs
        found.append(tokens)
    assert found[0] == found[1]


def _take(engine: Engine, tokens: dict[tuple[str, int], list[int]]) -> None:
    for output in engine.step():
        tokens.setdefault((output.id, output.index), []).extend(output.tokens)
