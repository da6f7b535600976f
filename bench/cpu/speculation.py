"""Decoding with and without speculation, on the CPU backend with the built-in model: python -m bench.cpu.speculation.

    python -m bench.cpu.speculation                    # 4 loads, 1 to 64 answers at once, 5 rounds
    python -m bench.cpu.speculation --batches 1 --loads code --rounds 1
    python -m bench.cpu.speculation --plot             # writes docs/pictures/speculation.svg from the last result

A process has two engines of the same model, which take turns: a round computes each load with both. A speed-up is the
median over the rounds of the ratio of both times, prompts included. Answers must be the same token by token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.lib.host import new_report, result_file
from bench.lib.results import save
from octavo_inference import LLM, SamplingParams
from octavo_inference.core.request import Guidance

BATCHES = (1, 2, 4, 8, 16, 32, 64)
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
    "burned oil until 1929, when the first generator was installed. The last keeper, Anna Holm, left the tower in 1974, "
    "and since then the light has been controlled from the harbour office. Visitors may climb the 214 steps from May "
    "to September. The view from the top reaches over the bay to the islands, and on clear days to the mountains behind "
    "them. In the small house beside the tower there is a museum with the old lamp, the keeper's log and a model of the "
    "last of the three ships."
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


class Ask(NamedTuple):
    """What is asked, of a chat model or to be continued, and what the answer must be."""

    text: str
    continued: bool = False
    guidance: Guidance | None = None


LOADS = {
    "code": Ask(CODE, continued=True),
    "json": Ask("Give me a list of people as JSON.", guidance=PEOPLE),
    "quotes": Ask(f"Quote this text, then say what it is about:\n\n{ARTICLE}"),
    "chat": Ask("Tell me a story about a sailor who finds an island that is on no map."),
}


def answers(llm: LLM, load: str, batch: int, tokens: int) -> tuple[float, list[list[int]]]:
    """Seconds for so many answers at once, of at most so many tokens, and their tokens. The first of them is greedy."""
    ask = LOADS[load]
    texts = [f"# File {number}\n\n{ask.text}" if ask.continued else f"{ask.text} ({number})" for number in range(batch)]
    params = [
        SamplingParams(max_tokens=tokens, temperature=min(number, 1) * 0.6, seed=number) for number in range(batch)
    ]
    begun = time.perf_counter()
    if ask.continued:
        found = llm.generate(texts, params, use_tqdm=False)
    else:
        talks = [[{"role": "user", "content": text}] for text in texts]
        found = llm.chat(talks, params, guidance=ask.guidance, use_tqdm=False)
    return time.perf_counter() - begun, [list(each.outputs[0].token_ids) for each in found]


def compared(plain: LLM, guessing: LLM, load: str, batch: int, tokens: int, rounds: int) -> dict[str, Any]:
    """The row of a load: the speed-up, and how its guesses fared."""
    totals = guessing.engine.speculation
    if totals is None:
        raise TypeError("an engine without speculation")
    before = totals.drafted, totals.accepted
    ratios: list[float] = []
    seconds: list[float] = []
    count = 0
    for number in range(rounds + 1):
        (first, expected), (second, found) = (answers(llm, load, batch, tokens) for llm in (plain, guessing))
        if found != expected:
            raise RuntimeError(f"{load}, {batch} at once: the answers differ")
        count = sum(map(len, found))
        if number:  # the first round warms up
            ratios.append(first / second)
            seconds.append(first)
    drafted, accepted = totals.drafted - before[0], totals.accepted - before[1]
    return {
        "load": load,
        "batch": batch,
        "speedup": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "tokens_per_second": round(count / statistics.median(seconds)),
        "drafted": drafted,
        "accepted": accepted,
    }


def plot(result: Path, picture: Path) -> None:
    """The speed-up over the batch, a line for each load."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    rows = json.loads(result.read_text())["rows"]
    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    for load in dict.fromkeys(row["load"] for row in rows):
        own = [row for row in rows if row["load"] == load]
        axes.plot([row["batch"] for row in own], [row["speedup"] for row in own], marker="o", label=load)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="answers at once", ylabel="speed-up", xticks=BATCHES, xticklabels=BATCHES)
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=8, help="guessed tokens in a step, at most")
    parser.add_argument("--plot", type=Path, metavar="RESULT", help="write the picture of a result instead")
    given = parser.parse_args()
    if given.plot:
        plot(given.plot, Path("docs/pictures/speculation.svg"))
        return
    report = new_report()
    plain = LLM(max_model_len=1024, kv_memory="256Mi")
    guessing = LLM(max_model_len=1024, kv_memory="256Mi", speculation="ngram", speculation_tokens=given.most)
    rows = []
    print(f"{'load':8} {'batch':>5} {'speed-up':>9} {'from':>6} {'to':>6} {'tokens/s':>9} {'accepted':>14}")
    for load in given.loads:
        for batch in given.batches:
            row = compared(plain, guessing, load, batch, given.tokens, given.rounds)
            rows.append(row)
            print(
                f"{load:8} {batch:5} {row['speedup']:9.2f} {row['lowest']:6.2f} {row['highest']:6.2f} "
                f"{row['tokens_per_second']:9} {row['accepted']:6} of {row['drafted']:5}",
                flush=True,
            )
    save(result_file("speculation"), report | {"tokens": given.tokens, "most": given.most, "rows": rows})


if __name__ == "__main__":
    main()
