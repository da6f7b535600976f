"""The command line of `octavo-server tune`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo_common import json_logs
from octavo_inference.backends.cpu.native.cores import usable_cores
from octavo_inference.common.errors import OctavoError, SettingsError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.config.server import engine_parser, server_settings
from octavo_inference.engine.factory import load_engine
from octavo_inference.engine.process import engine_settings
from octavo_inference.engine.speculation import refusal
from octavo_inference.tools.tune.search import FinalResult, TrialSettings, final, grid, halving
from octavo_inference.tools.tune.trials import Engines, RequestShape, TrialLoad, read_shapes, run
from octavo_protocol.knobs import settings_of
from octavo_protocol.server_settings import ServerSettings

_DESCRIPTION = """Measure a load on this machine over a small grid of settings, and write the fastest ones as a file
for `octavo-server --config`. Settings given here are kept and not varied. Takes minutes; nothing else should run."""


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status: 0 with a file written, 1 the model cannot be loaded, 2 a wrong setting."""
    try:
        given = _parser().parse_args(argv)
        settings = server_settings(vars(given))
        load = _load(given)
    except OctavoError as error:
        sys.stderr.write(f"octavo-server tune: {error}\n")
        return 2
    json_logs.configure("text")
    logging.getLogger("octavo_inference").setLevel(logging.ERROR)  # each engine would log its sizes
    try:
        _tune(settings, load, Path(given.output))
    except OctavoError as error:
        sys.stderr.write(f"octavo-server tune: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = engine_parser("octavo-server tune", _DESCRIPTION)
    load = parser.add_argument_group("load")
    load.add_argument("--prompt-tokens", type=_count, metavar="N", help="tokens in a prompt (default: 256)")
    load.add_argument("--answer-tokens", type=_count, metavar="N", help="tokens in an answer (default: 128)")
    load.add_argument(
        "--load",
        metavar="FILE",
        help='instead of these two, lines such as {"prompt_tokens": 300, "answer_tokens": 80}, repeated as needed; '
        'with texts, such as {"prompt": "What is it?", "answer_tokens": 80}, speculation is tried too',
    )
    load.add_argument(
        "--concurrency", type=_count, default=16, metavar="N", help="requests at any time (default: %(default)s)"
    )
    load.add_argument("--output", required=True, metavar="FILE", help="where the settings go, as TOML")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2**20:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {2**20}")
    return int(text)


def _load(given: argparse.Namespace) -> TrialLoad:
    if given.load is None:
        shape = RequestShape(prompt_tokens=given.prompt_tokens or 256, answer_tokens=given.answer_tokens or 128)
        return TrialLoad((shape,), given.concurrency)
    if given.prompt_tokens or given.answer_tokens:
        raise SettingsError("--load: give either a file or --prompt-tokens and --answer-tokens, not both", "--load")
    return TrialLoad(read_shapes(Path(given.load)), given.concurrency)


def _tune(settings: ServerSettings, load: TrialLoad, output: Path) -> None:
    try:
        output.touch()  # fails now if the file is not writable, minutes before the results exist
    except OSError as error:
        raise SettingsError(f"--output: {output}: {error.strerror}", "--output") from None
    if (ranks := settings.engine.tensor_parallel_size) > 1:
        raise SettingsError(
            f"--tensor-parallel-size {ranks}: tune measures models on one device; leave it out",
            "--tensor-parallel-size",
        )
    wishes = engine_settings(settings)
    first = load_engine(wishes)
    default = _candidate(first.settings)
    tokenizer, vocab = first.text.tokenizer, first.engine.config.own_vocab
    longest, limit = load.longest(tokenizer), first.engine.limits.max_model_len
    if longest > limit:
        raise SettingsError(f"a request of {longest} tokens is longer than the {limit} this model serves", "--load")
    # All candidates get the KV pool and the dtype of the defaults.
    wishes = dataclasses.replace(
        wishes, kv_memory=first.settings.kv_memory, kv_memory_percent=None, dtype=first.settings.dtype
    )
    backend, can_guess = first.engine.backend.name, not refusal(first.engine.config, first.engine.backend)
    del first
    given = {f.name for f in dataclasses.fields(TrialSettings) if getattr(settings.engine, f.name) is not None}
    # What is said to random tokens, nobody can guess.
    varied = {"speculation"} if load.has_texts and can_guess and default.speculation == "none" else set()
    candidates = grid(default, cores=usable_cores(), concurrency=load.concurrency, fixed=frozenset(given - varied))
    engines = Engines(wishes, candidates)
    rates: dict[TrialSettings, float] = {}

    def rate(candidate: TrialSettings, effort: int) -> float:
        requests = load.requests(load.concurrency * effort, tokenizer, vocab)
        rates[candidate] = run(engines.get(candidate), requests, load.concurrency)
        _say(f"{rates[candidate]:9.1f} tokens/s over {load.concurrency * effort} requests: {describe(candidate)}")
        return rates[candidate]

    _say(f"{backend}: {len(candidates)} settings to try on {load.concurrency} requests at a time; first the defaults")
    # First touch of weights and buffers.
    run(engines.get(default), load.requests(min(2, load.concurrency), tokenizer, vocab), load.concurrency)
    ranking = halving(candidates, rate)
    others = [candidate for candidate in ranking if candidate != default]
    verdict = None
    if others:
        _say("the best other one and the defaults in turns")
        verdict = final(default, others[0], rate)
    sys.stdout.write(table(ranking, rates, default, verdict))
    when = f"{time.strftime('%Y-%m-%d', time.gmtime())} on {backend}"
    output.write_text(profile(settings, load, default, verdict, when), encoding="utf-8")
    sys.stdout.write(f"written: {output}; use it with: octavo-server --config {output}\n")


def _candidate(settings: EngineSettings) -> TrialSettings:
    """The varied fields, with the values that the engine resolved."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(TrialSettings)}
    return TrialSettings(**values)


def describe(candidate: TrialSettings) -> str:
    """The candidate's settings by their names in the file."""
    return ", ".join(f"{_key(name)} {value}" for name, value in dataclasses.asdict(candidate).items())


def table(
    ranking: Sequence[TrialSettings],
    rates: dict[TrialSettings, float],
    default: TrialSettings,
    verdict: FinalResult | None,
) -> str:
    """The table of all candidates with the rate of their last trial, the best first."""
    names = [field.name for field in dataclasses.fields(TrialSettings)]
    lines = ["  ".join(f"{_key(name):>20}" for name in names) + "   tokens/s, last trial"]
    for candidate in ranking:
        cells = "  ".join(f"{getattr(candidate, name):>20}" for name in names)
        lines.append(f"{cells}   {rates[candidate]:.1f}{'  (defaults)' if candidate == default else ''}")
    return "\n".join([*lines, "", outcome(verdict)]) + "\n"


def outcome(verdict: FinalResult | None) -> str:
    """One sentence with the result of the final."""
    if verdict is None:
        return "All settings were given, so there was nothing to choose."
    found = f"{100 * verdict.gain:+.1f} % in {len(verdict.rates)} rounds in turns"
    noise = f"the defaults' own rounds lie {100 * verdict.noise:.1f} % apart"
    if verdict.convincing:
        return f"The best settings beat the defaults by {found}; {noise}."
    return f"The defaults are kept: the best other settings make {found}, and {noise}."


def profile(
    settings: ServerSettings, load: TrialLoad, default: TrialSettings, verdict: FinalResult | None, when: str
) -> str:
    """The TOML file: the given settings, and the chosen ones where they differ from the defaults."""
    shapes = load.shapes[0] if len(load.shapes) == 1 else None
    what = f"{shapes.prompt_tokens} tokens in, {shapes.answer_tokens} out" if shapes else f"{len(load.shapes)} shapes"
    if load.has_texts:
        what = f"{len(load.shapes)} prompts"
    values: dict[str, Any] = {"model": settings.engine.model}
    if settings.served_model_names:
        values["served-model-name"] = list(settings.served_model_names)
    for setting in settings_of(EngineSettings):
        if getattr(settings.engine, setting.name) != setting.default:
            values[setting.key] = getattr(settings.engine, setting.name)
    if verdict is not None and verdict.convincing:
        values |= {_key(name): value for name, value in verdict.candidate.differences(default).items()}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    head = f"# Measured by octavo-server tune, {when}: {what}, {load.concurrency} at a time."
    return "\n".join([head, f"# {outcome(verdict)}", *lines]) + "\n"


def _key(name: str) -> str:
    return name.replace("_", "-")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
