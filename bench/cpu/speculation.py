"""Decoding with and without speculation, on the CPU backend with the built-in model: python -m bench.cpu.speculation.

    python -m bench.cpu.speculation                    # all proposers and loads, 5 rounds
    python -m bench.cpu.speculation --proposers ngram --loads code --batches 1 --rounds 1
    python -m bench.cpu.speculation --plot RESULT ...  # writes docs/pictures/speculation.svg from results

A process has two engines of the same model, which take turns: a round computes each load with both. A speed-up is the
median over the rounds of the ratio of both times, prompts included. Answers must be the same token by token.

A draft model needs a larger model whose answers are like its own. The built-in model takes that place itself, with
layers added that change little of what it says (`bench.cpu.deeper`): four times as many, of the same size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bench.cpu.deeper import deeper
from bench.lib import loads
from bench.lib.host import new_report, result_file
from bench.lib.plot import BLUE, GREY, RED, plt
from bench.lib.plot import save as save_plot
from bench.lib.results import save
from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.engine import Engine
from octavo_inference.core.request import Guidance, Request, SamplingParams
from octavo_inference.engine.factory import engine_for
from octavo_inference.model_loader import LoadedModel, load_model

Proposer = Literal["ngram", "draft"]
BATCHES = (1, 2, 4, 8, 16, 32)
PICTURE = Path("docs/pictures/speculation.svg")
CODE = """def celsius_to_fahrenheit(value: float) -> float:
    \"\"\"Convert degrees Celsius to degrees Fahrenheit.\"\"\"
    if value < -273.15:
        raise ValueError(f"celsius_to_fahrenheit: {value} is below absolute zero")
    return value * 9 / 5 + 32


def fahrenheit_to_celsius(value: float) -> float:
    \"\"\"Convert degrees Fahrenheit to degrees Celsius.\"\"\"
    if value < -459.67:
        raise ValueError(f"fahrenheit_to_celsius: {value} is below absolute zero")
    return (value - 32) * 5 / 9


def celsius_to_kelvin(value: float) -> float:
    \"\"\"Convert degrees Celsius to kelvins.\"\"\"
    if value < -273.15:
"""
ARTICLE = (
    "The lighthouse at the northern cape was built in 1871, after three ships had been lost in one winter. Its lamp "
    "burned oil until 1929, when the first generator was installed. The last keeper, Anna Holm, left the tower in "
    "1974, and since then the light has been controlled from the harbour office. Visitors may climb the 214 steps "
    "from May to September. The view from the top reaches over the bay to the islands, and on clear days to the "
    "mountains behind them. In the small house near the tower there is a museum with the old lamp, the keeper's log "
    "and a model of the last of the three ships."
)
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "city": {"enum": ["Paris", "Rome", "Oslo"]}, "age": {"type": "integer"}},
    "required": ["name", "city", "age"],
    "additionalProperties": False,
}
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
PEOPLE = Guidance(
    grammar="start: %json " + json.dumps({"type": "array", "items": _PERSON, "minItems": 100, "x-guidance": _STYLE})
)


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked, of a chat model or to be continued, and what the answer must be."""

    text: str
    continued: bool = False
    guidance: Guidance | None = None

    def prompt(self, number: int) -> str:
        """The text of one of several requests: none has the prefix of another one."""
        if self.continued:
            return f"# File {number}\n\n{self.text}"
        return f"<|im_start|>user\n({number}) {self.text}<|im_end|>\n<|im_start|>assistant\n"


LOADS = {
    "code": Ask(CODE, continued=True),
    "json": Ask("Give me a list of people as JSON.", guidance=PEOPLE),
    "quotes": Ask(f"Quote this text, then say what it is about:\n\n{ARTICLE}"),
    "chat": Ask("Tell me a story about a sailor who finds an island that is on no map."),
}
# Random prompts whose answers have given lengths, so many at once as there are rows: the throughput loads.
MIXES = ("mix-64", "mix-256")


def requests(model: LoadedModel, load: str, batch: int, tokens: int) -> list[Request]:
    """The requests of a load. Answers are sampled, but for the first one."""
    if load in MIXES:
        mix = loads.load(load)
        return [
            Request(
                id=str(number),
                tokens=prompt,
                sampling=SamplingParams(max_tokens=length, temperature=0, ignore_eos=True),
            )
            for number, (prompt, length) in enumerate(zip(mix.prompts, mix.output_lengths, strict=True))
        ]
    ask, tokenizer = LOADS[load], model.text.tokenizer
    return [
        Request(
            id=str(number),
            tokens=tokenizer.encode(ask.prompt(number), add_special_tokens=False).ids,
            sampling=SamplingParams(max_tokens=tokens, temperature=min(number, 1) * 0.6, seed=number),
            guidance=ask.guidance,
        )
        for number in range(batch)
    ]


def answers(engine: Engine, asked: list[Request]) -> tuple[float, dict[str, list[int]]]:
    """Seconds for all answers at once, and their tokens."""
    found: dict[str, list[int]] = {request.id: [] for request in asked}
    begun = time.perf_counter()
    for request in asked:
        engine.submit(request)
    while engine.has_work:
        engine.wait()
        for output in engine.step():
            found[output.id] += output.tokens
    return time.perf_counter() - begun, found


def compared(engines: tuple[Engine, Engine], asked: list[Request], rounds: int) -> dict[str, Any]:
    """The speed-up of the second engine, and how its guesses fared."""
    plain, guessing = engines
    totals = guessing.speculation
    if totals is None:
        raise TypeError("an engine without speculation")
    ratios: list[float] = []
    seconds: list[float] = []
    count = drafted = accepted = 0
    for number in range(rounds + 1):
        if number == 1:  # the first round warms up
            drafted, accepted = totals.drafted, totals.accepted
        (first, expected), (second, found) = (answers(engine, asked) for engine in (plain, guessing))
        if found != expected:
            raise RuntimeError("the answers differ")
        count = sum(map(len, found.values()))
        if number:
            ratios.append(first / second)
            seconds.append(first)
    return {
        "speedup": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "tokens_per_second": round(count / statistics.median(seconds)),
        "drafted": totals.drafted - drafted,
        "accepted": totals.accepted - accepted,
    }


def pair(proposer: Proposer, model: LoadedModel, most: int) -> tuple[Engine, Engine]:
    """An engine without speculation, and one with."""
    settings = EngineSettings(max_model_len=1024, kv_memory=1 << 30, speculation_tokens=most)
    draft = "smollm2" if proposer == "draft" else None
    guessing = replace(settings, speculation=proposer, speculation_model=draft)
    return engine_for(settings, model).engine, engine_for(guessing, model).engine


def plot(results: list[Path]) -> None:
    """The speed-up over the batch: a panel for each proposer, a line for each load."""
    rows = [row for each in results for row in json.loads(each.read_text())["rows"] if row["load"] in LOADS]
    proposers = list(dict.fromkeys(row["proposer"] for row in rows))
    _, panels = plt.subplots(1, len(proposers), figsize=(3.6 * len(proposers), 3), sharey=True, squeeze=False)
    colors = dict(zip(LOADS, (BLUE, RED, "#3f8f5b", GREY), strict=True))
    for axes, proposer in zip(panels[0], proposers, strict=True):
        own = [row for row in rows if row["proposer"] == proposer]
        for load in dict.fromkeys(row["load"] for row in own):
            points = [(row["batch"], row["speedup"]) for row in own if row["load"] == load]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colors[load], label=load)
        axes.axhline(1, color=GREY, linewidth=0.8)
        axes.set(title=proposer, xscale="log", xlabel="answers at once", xticks=BATCHES, xticklabels=BATCHES)
        axes.minorticks_off()
    panels[0][0].set_ylabel("speed-up")
    panels[0][0].legend(frameon=False)
    save_plot(PICTURE)


def main() -> None:
    """Measure, or draw a result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proposers", nargs="+", choices=("ngram", "draft"), default=["ngram", "draft"])
    parser.add_argument("--loads", nargs="+", choices=(*LOADS, *MIXES), default=[*LOADS, *MIXES])
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--tokens", type=int, default=200, help="of an answer, at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=8, help="guessed tokens of an answer in a step, at most")
    parser.add_argument("--plot", type=Path, nargs="+", metavar="RESULT", help="draw results instead")
    given = parser.parse_args()
    if given.plot:
        plot(given.plot)
        return
    report = new_report(tokens=given.tokens, most=given.most, rounds=given.rounds)
    small = load_model("smollm2")
    if not isinstance(small, LoadedModel):
        raise TypeError("the built-in model has native kernels")
    rows = []
    print(
        f"{'proposer':8} {'load':8} {'batch':>5} {'speed-up':>9} {'from':>6} {'to':>6} {'tokens/s':>9} {'accepted':>14}"
    )
    for proposer in given.proposers:
        model = deeper(small, 4) if proposer == "draft" else small
        engines = pair(proposer, model, given.most)
        for load in given.loads:
            for batch in given.batches[:1] if load in MIXES else given.batches:
                asked = requests(model, load, batch, given.tokens)
                found = compared(engines, asked, given.rounds)
                rows.append({"proposer": proposer, "load": load, "batch": len(asked), **found})
                print(
                    f"{proposer:8} {load:8} {len(asked):5} {found['speedup']:9.2f} {found['lowest']:6.2f} "
                    f"{found['highest']:6.2f} {found['tokens_per_second']:9} {found['accepted']:6} of "
                    f"{found['drafted']:5}",
                    flush=True,
                )
    save(result_file("speculation"), report | {"rows": rows})


if __name__ == "__main__":
    main()
