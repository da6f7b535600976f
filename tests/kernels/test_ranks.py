"""Tensor parallelism in Triton's interpreter: processes that share a decoder give what one process gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.core.backend import Backend

from .test_engine import BLOCK, LONGEST, PROMPTS, FakeMatcher, Guidance, Runner, grammar, make_runner, tiny_model

ROOT = Path(__file__).resolve().parents[2]


def serve(backend: Backend, **limits: Any) -> Runner:
    """A greedy answer, sampled, ruled and guided ones and an embedding, then an answer to a prompt seen before."""
    runner = make_runner(backend, max_model_len=LONGEST, max_running=4, load_vocabulary=lambda: FakeMatcher, **limits)
    runner.submit("greedy", PROMPTS[2], max_tokens=3, ignore_eos=True)
    runner.submit("two", PROMPTS[1], temperature=1.0, top_p=0.9, seed=9, n=2, max_tokens=3, ignore_eos=True)
    runner.submit(
        "ruled", PROMPTS[0], allowed_token_ids=range(30), bad_words=[[4], [7, 1]], logit_bias={4: 9.0, 7: 9.0, 1: 8.0},
        logprob_token_ids=[3], prompt_logprobs=1, max_tokens=3, ignore_eos=True,
    )  # fmt: skip
    runner.submit("guided", PROMPTS[0], guidance=Guidance(grammar=grammar(3, 4)), max_tokens=4, temperature=1.0, n=2)
    runner.finish()
    runner.submit("again", PROMPTS[2], max_tokens=2, ignore_eos=True)
    runner.submit("embedded", PROMPTS[1], pooling="mean")
    runner.finish()
    return runner


def ranks(*arguments: str) -> list[str]:
    """Lines of ranks.py, without those that older torch versions write."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.ranks", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]


@pytest.mark.parametrize(
    ("size", "names"),
    [
        pytest.param(2, ("everything",), marks=pytest.mark.full),
        (4, ("everything", "untied", "quantised", "experts", "clamped experts", "latent", "parallel")),
    ],
    ids=["2", "4"],
)
def test_logits_are_those_of_one_process(size: int, names: tuple[str, ...], record: Callable[..., None]) -> None:
    """Normed and biased, with a head of its own, quantised; 61 words; 2 key-value heads, which 4 ranks have twice.

    Experts with a shared MLP, and with biases.
    """
    found = [line.rsplit(maxsplit=2) for line in ranks("logits", str(size), *names)]
    assert [name for name, _, _ in found] == list(names)
    for name, error, different in found:
        record(f"{size} ranks: logits, {name}", "4/2 heads", "float32", float(error))
        assert float(error) < 1e-5
        assert different == "0"


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (2, ("gated outputs",)),
        (4, ("full attention", "latent", "parallel")),
        pytest.param(2, ("full attention", "quantised", "experts", "clamped experts"), marks=pytest.mark.full),
        pytest.param(4, ("untied", "gated outputs"), marks=pytest.mark.full),
    ],
    ids=["2", "4", "2 more", "4 more"],
)
def test_sequences_with_and_without_adapters_get_the_logits_of_merged_weights(
    size: int, names: tuple[str, ...], record: Callable[..., None]
) -> None:
    """Every rank has its part of each adapter, biases are added once, and slots have held other adapters."""
    found = [line.rsplit(maxsplit=1) for line in ranks("adapters", str(size), *names)]
    assert [name for name, _ in found] == list(names)
    for name, error in found:
        record(f"{size} ranks: logits with adapters, {name}", "4/2 heads", "float32", float(error))
        assert float(error) < 1e-5


def test_adapters_come_and_go_on_all_ranks_while_steps_run() -> None:
    """In two slots, one step ahead. One that rank 1 cannot prepare fails alone, and requests for it say so."""
    (line,) = ranks("exchange")
    found = json.loads(line)
    for request, tokens in found["tokens"].items():
        assert tokens == found["merged"][request.split(" ")[1]], request
    assert sorted(found["tokens"]) == sorted(
        [f"{turn} {name}" for turn in range(2) for name in ("a", "b", "c", "")] + ["0 later"]
    )
    answers = {tuple(tokens) for tokens in found["merged"].values()}
    assert len(answers) == 5, "the adapters change answers"
    assert found["states"].pop("fails") == "failed"
    assert set(found["states"]) == {"a", "c", "later"}
    assert set(found["states"].values()) <= {"loaded", "cached", "stored"}
    assert found["failure"] == "rank 1 could not prepare it: InjectedFaultError: failpoint rank.adapter"
    assert found["ended"] == "no_adapter"


def test_an_engine_on_two_ranks_gives_the_tokens_of_the_reference() -> None:
    """Chunks, recorded decodes a step ahead, siblings that share blocks, blocks taken away, prefixes found again."""
    (line,) = ranks("engine", "plain")
    found = json.loads(line)
    reference = ReferenceBackend(*tiny_model(), num_blocks=32, block_size=BLOCK, max_model_len=LONGEST)
    wanted = serve(reference, caching=False)
    expected = {f"{request} {index}": tokens for (request, index), tokens in wanted.tokens.items()}
    assert found["tokens"] == expected
    assert expected["again 0"] == expected["greedy 0"][:2]
    assert found["embedding"] == pytest.approx(wanted.embedding("embedded").tolist(), rel=1e-4, abs=1e-5)
    assert found["preemptions"] > 0
    assert found["hits"] > 0
    assert found["overlaps"]
    assert found["replays"] > 2
