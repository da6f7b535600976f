"""The sizes that steps are launched in hold them, and are few; lists of launches give the driver what Triton does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from octavo_inference.backends.cuda.buffers import StepLimits
from octavo_inference.backends.cuda.inputs import LaunchSize
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm, normalize
from octavo_inference.backends.cuda.launch_list import LaunchList, LaunchLists, record
from octavo_inference.backends.cuda.launch_sizes import decode_sizes, padded, prompt_sizes

ROOT = Path(__file__).resolve().parents[2]


def limits(tokens: int, rows: int) -> StepLimits:
    return StepLimits(tokens, rows, positions=64, block_size=16, processors=1, vocab=1000)


@st.composite
def steps(draw: st.DrawFn) -> tuple[LaunchSize, StepLimits]:
    """An exact size of a step, and limits that allow it."""
    given_ = limits(draw(st.integers(1, 9000)), draw(st.integers(1, 600)))
    tokens = draw(st.integers(1, given_.tokens))
    sequences = draw(st.integers(1, min(tokens, given_.rows)))
    samples = draw(st.integers(0, given_.rows))
    kinds = ["decodes"] if sequences == tokens else ["prompts", "mixed"]
    return LaunchSize(sequences, tokens, samples, draw(st.sampled_from(kinds))), given_


@given(steps())
def test_a_step_fits_into_its_size(drawn: tuple[LaunchSize, StepLimits]) -> None:
    exact, most = drawn
    size = padded(exact, most)
    assert exact.sequences <= size.sequences <= most.rows
    assert exact.tokens <= size.tokens <= most.tokens
    assert exact.samples <= size.samples <= most.rows
    assert size.kind in {exact.kind, "mixed"}
    asked = max(exact.tokens, exact.samples)
    assert size.tokens <= max(16, 1.5 * asked), "padding is bounded"
    assert padded(size, most) == size


@given(steps())
def test_sizes_up_to_2048_tokens_may_have_graphs(drawn: tuple[LaunchSize, StepLimits]) -> None:
    exact, most = drawn
    size = padded(exact, most)
    first, later = decode_sizes(most)
    if size.kind == "decodes":
        assert size in first + later or size.sequences < 8
    elif size.tokens <= 2048 and exact.samples <= most.tokens:
        assert size in prompt_sizes(most)


def test_there_are_few_sizes() -> None:
    sizes = prompt_sizes(limits(8192, 256))
    tokens = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048]
    assert sorted({size.tokens for size in sizes}) == tokens
    assert {size.sequences for size in sizes if size.tokens == 2048} == {8, 64, 256}
    assert len(sizes) < 64
    assert len({padded(LaunchSize(1, n, 1, "prompts"), limits(8192, 256)) for n in range(2, 8193)}) == 17 + 24


def test_the_size_that_was_used_longest_ago_is_recorded_again() -> None:
    recorded: list[int] = []
    ran: list[int] = []

    def one(size: LaunchSize) -> LaunchList:
        recorded.append(size.sequences)
        return LaunchList([lambda: ran.append(size.sequences)])

    lists = LaunchLists(one, most=2)
    order = [1, 2, 1, 3, 1, 2]
    for n in order:
        lists.run(LaunchSize(n, n, n, "decodes"))
    assert ran == order
    assert recorded == [1, 2, 3, 2]


def in_another_thread(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as other:
        other.submit(work).result()


def test_kernels_of_other_threads_run_while_one_records() -> None:
    x, weight, mine, theirs = (torch.ones(2, 16), torch.ones(16), torch.zeros(2, 16), torch.zeros(2, 16))

    def work() -> None:
        normalize(x, DeviceNorm(weight), 0.0, mine)
        in_another_thread(lambda: normalize(x, DeviceNorm(weight), 0.0, theirs))

    recorded = record(work)
    assert theirs.eq(1).all()
    assert mine.eq(0).all()
    theirs.zero_()
    recorded.replay()
    assert mine.eq(1).all()
    assert theirs.eq(0).all()


def test_recordings_of_two_threads_leave_triton_as_it_was() -> None:
    before = JITFunction.run, InterpretedFunction.run
    begun, ended = threading.Event(), threading.Event()

    def second() -> None:
        begun.set()
        ended.wait()

    other = threading.Thread(target=record, args=(second,))

    def first() -> None:
        other.start()
        begun.wait(0.1)  # in vain, if the other one waits for its turn

    record(first)
    ended.set()
    other.join()
    assert (JITFunction.run, InterpretedFunction.run) == before


def test_a_recording_that_fails_leaves_triton_as_it_was() -> None:
    before = JITFunction.run, InterpretedFunction.run
    with pytest.raises(RuntimeError, match="makes a tensor"):
        record(lambda: torch.ones(2) + 1)
    assert (JITFunction.run, InterpretedFunction.run) == before
    record(lambda: None)  # the next one is not kept out


def test_a_list_launches_what_triton_does() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, "-m", "tests.kernels.launch_arguments"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "3"
