"""`octavo-server tune`: the best settings win, noise does not, and the server reads what is written."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from octavo_inference.config.engine import EngineSettings
from octavo_inference.config.server import parse
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.request import Request
from octavo_inference.tools.tune import command, trials
from octavo_inference.tools.tune.search import FinalResult, TrialSettings, final, grid, halving
from octavo_inference.tools.tune.trials import RequestShape, TrialLoad, run

from .echo import CONFIG, VOCAB, EchoBackend, Engine

TOKENIZER = Tokenizer(models.WordLevel({f"w{n}": n for n in range(50)}, "w0"))
TOKENIZER.pre_tokenizer = pre_tokenizers.Whitespace()

DEFAULT = TrialSettings(threads=2, block_size=32, speculation="none", max_batched_tokens=512, max_running_requests=64)


def shape(prompt: int, answer: int) -> RequestShape:
    return RequestShape(prompt_tokens=prompt, answer_tokens=answer)


def speed(candidate: TrialSettings, effort: int) -> float:
    """A machine that likes large steps and one thread."""
    return candidate.max_batched_tokens / candidate.threads


def test_grid_begins_with_the_defaults_and_varies_nothing_that_was_given() -> None:
    everything = grid(DEFAULT, cores=2, concurrency=100, fixed=frozenset())
    assert everything[0] == DEFAULT
    assert len(set(everything)) == len(everything)
    assert {c.max_running_requests for c in everything} == {64, 128}
    assert all(c.max_batched_tokens >= c.max_running_requests for c in everything)
    assert {c.speculation for c in everything} == {"none", "ngram"}
    kept = grid(DEFAULT, cores=2, concurrency=100, fixed=frozenset({"threads", "block_size", "speculation"}))
    assert {(c.threads, c.block_size, c.speculation) for c in kept} == {(2, 32, "none")}


def test_candidates_of_one_engine_are_next_to_each_other() -> None:
    """All but the defaults, which come first: weights are loaded once for each."""
    others = grid(DEFAULT, cores=2, concurrency=100, fixed=frozenset())[1:]
    engines = [(c.threads, c.block_size, c.speculation) for c in others]
    assert len([key for key, _ in itertools.groupby(engines)]) == len(set(engines))


def test_halving_finds_the_fastest_and_gives_it_the_longest_trials() -> None:
    efforts: dict[TrialSettings, list[int]] = {}

    def rate(candidate: TrialSettings, effort: int) -> float:
        efforts.setdefault(candidate, []).append(effort)
        return speed(candidate, effort)

    candidates = grid(DEFAULT, cores=2, concurrency=16, fixed=frozenset({"speculation"}))
    ranking = halving(candidates, rate)
    assert sorted(ranking, key=hash) == sorted(candidates, key=hash)
    assert (ranking[0].max_batched_tokens, ranking[0].threads) == (1024, 1)
    assert efforts[ranking[0]] == [1, 2, 4]
    assert efforts[ranking[-1]] == [1]


@pytest.mark.parametrize(
    ("rates", "defaults", "convincing"),
    [
        ((120.0, 121.0, 119.0, 120.0), (100.0, 101.0, 99.0, 100.0), True),
        ((101.0, 101.5, 101.0, 101.2), (100.0, 100.5, 100.0, 100.1), False),  # 1 % is not worth a file
        ((120.0, 121.0, 119.0, 120.0), (100.0, 118.0, 90.0, 100.0), False),  # the machine is that noisy itself
        ((120.0, 99.0, 120.0, 120.0), (100.0, 100.0, 100.0, 100.0), False),  # slower in one round
    ],
)
def test_gain_must_exceed_the_noise(rates: tuple[float, ...], defaults: tuple[float, ...], convincing: bool) -> None:
    assert FinalResult(DEFAULT, rates, defaults).convincing is convincing


def test_final_takes_turns() -> None:
    order: list[TrialSettings] = []

    def rate(candidate: TrialSettings, effort: int) -> float:
        order.append(candidate)
        return 1.0

    other = dataclasses.replace(DEFAULT, threads=1)
    final(DEFAULT, other, rate)
    assert order == [other, DEFAULT] * 4


def test_trial_serves_every_request_and_never_more_at_once_than_asked() -> None:
    backend = EchoBackend(num_blocks=64)
    engine = Engine(backend, CONFIG, EngineLimits(64, 8, 32, 100), clock=lambda: 0.0)
    times = itertools.count()
    load = TrialLoad((shape(5, 3), shape(7, 2)), concurrency=2)
    rate = run(engine, load.requests(5, TOKENIZER, VOCAB), 2, clock=lambda: next(times))
    assert rate == 3 + 2 + 3 + 2 + 3
    assert max(len(batch.seq_len) for batch in backend.batches) == 2


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_engine(settings: EngineSettings) -> SimpleNamespace:
        settled = dataclasses.replace(
            settings,
            threads=settings.threads or 2,
            block_size=settings.block_size or 4,
            max_batched_tokens=settings.max_batched_tokens or 32,
            max_running_requests=settings.max_running_requests or 8,
            kv_memory=settings.kv_memory or 2**20,
        )
        limits = EngineLimits(64, settled.max_running_requests or 0, settled.max_batched_tokens or 0, 100)
        engine = Engine(EchoBackend(128, settled.block_size or 0), CONFIG, limits, clock=lambda: 0.0)

        def again(limits: EngineLimits) -> Engine:
            made = Engine(engine.backend, CONFIG, limits, clock=lambda: 0.0)
            made.guesses = settings.speculation
            return made

        text = SimpleNamespace(tokenizer=TOKENIZER)
        return SimpleNamespace(engine=engine, settings=settled, text=text, again=again)

    monkeypatch.setattr(command, "load_engine", load_engine)
    monkeypatch.setattr(trials, "load_engine", load_engine)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("faster", [True, False])
def test_written_file_is_what_the_server_reads(
    faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(engine: Engine, requests: list[Request], concurrency: int) -> float:
        run(engine, requests, concurrency)
        return float(engine.limits.max_batched_tokens) if faster else 100.0

    monkeypatch.setattr(command, "run", measured)
    output = tmp_path / "profile.toml"
    flags = ["--prompt-tokens", "6", "--answer-tokens", "3", "--concurrency", "3"]
    assert command.main(["--threads", "2", "--kv-memory", "1Mi", *flags, "--output", str(output)]) == 0
    settings = parse(["--config", str(output)]).engine
    assert (settings.threads, settings.kv_memory) == (2, 2**20)
    assert settings.max_batched_tokens == (64 if faster else None)
    printed = capsys.readouterr()
    assert "(defaults)" in printed.out
    assert ("The best settings beat the defaults by +100.0 %" if faster else "The defaults are kept") in printed.out
    assert "6 tokens in, 3 out, 3 at a time" in output.read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt_tokens": 5}', "missing required field `answer_tokens`"),
        ('{"prompt_tokens": 0, "answer_tokens": 1}', "each with 1 token or more"),
        ("", "needs at least one request"),
        ('{"prompt": "", "answer_tokens": 1}', "each with 1 token or more"),
        ('{"prompt": "w1", "prompt_tokens": 5, "answer_tokens": 1}', "a line has prompt and prompt_tokens; give one"),
    ],
)
def test_load_file_is_checked(line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text(line + "\n")
    assert command.main(["--load", str(file), "--output", str(tmp_path / "out.toml")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.toml").exists()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("lines", "flags", "tried"),
    [
        (['{"prompt": "w1 w2 w3", "answer_tokens": 4}'], [], {"none", "ngram"}),
        (['{"prompt": "w1 w2 w3", "answer_tokens": 4}'], ["--speculation", "ngram"], {"ngram"}),
        (['{"prompt_tokens": 3, "answer_tokens": 4}'], [], {"none"}),
    ],
    ids=["texts", "given", "random tokens"],
)
def test_speculation_is_tried_where_answers_are_said_to_texts(
    lines: list[str], flags: list[str], tried: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load_engine = trials.load_engine

    def noted(settings: EngineSettings) -> object:
        loaded.append(settings.speculation)
        return load_engine(settings)

    monkeypatch.setattr(trials, "load_engine", noted)
    monkeypatch.setattr(command, "run", lambda engine, *_: 200.0 if engine.guesses == "ngram" else 100.0)
    file, output = tmp_path / "load.jsonl", tmp_path / "profile.toml"
    file.write_text("\n".join(lines))
    assert command.main(["--load", str(file), "--concurrency", "2", *flags, "--output", str(output)]) == 0
    assert set(loaded) == tried
    assert parse(["--config", str(output)]).engine.speculation == ("ngram" if "ngram" in tried else "none")


def test_requests_are_the_same_each_time() -> None:
    load = TrialLoad((RequestShape(prompt="w1 w2 w3", answer_tokens=4), shape(5, 3)), concurrency=2)
    first, second = (load.requests(4, TOKENIZER, VOCAB) for _ in range(2))
    assert first == second
    assert (first[0].tokens, first[0].sampling.ignore_eos, first[0].sampling.max_tokens) == ([1, 2, 3], False, 4)
    assert (len(first[1].tokens), first[1].sampling.ignore_eos) == (5, True)
    assert first[1].tokens != first[3].tokens, "no request has the prefix of another one"
    assert load.longest(TOKENIZER) == 8


@pytest.mark.usefixtures("tiny")
def test_requests_longer_than_the_model_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--prompt-tokens", "60", "--answer-tokens", "5", "--output", str(tmp_path / "out.toml")]
    assert command.main(arguments) == 1
    assert "a request of 65 tokens is longer than the 64 this model serves" in capsys.readouterr().err
