"""Measures what compiling costs for 300 schemas: python -m bench.cpu.grammars [--docs FILE].

For each schema: the check, the text, compiling and the first mask, in one thread with the built-in model's tokens. The
page has percentiles by kind of schema, and the refusals of keywords that are not supported.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from bench.lib.schemas import COUNT, Schema, corpus
from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.json_schema import check_schema
from octavo_inference.grammar.matcher import Vocabulary
from octavo_inference.grammar.sources import json_schema_rule, whole
from octavo_inference.tokenizer.assets import load_assets

ROUNDS = 3
SIZE, END = 49_152, 2
UNSUPPORTED = (
    "not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "dependentRequired",
    "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "contentEncoding",
    "contentMediaType", "$anchor", "$dynamicRef",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, help="write the page to this file")
    given = parser.parse_args()
    vocabulary = Vocabulary(load_assets("smollm2").tokenizer, SIZE, [END])
    seconds: dict[str, list[float]] = defaultdict(list)
    refused: list[str] = []
    for kind, schema in corpus():
        try:
            seconds[kind].append(min(_seconds(vocabulary, schema) for _ in range(ROUNDS)))
        except RequestError as error:
            refused.append(f"{kind}: {error}")
    page = _page(seconds, refused)
    print(page)
    if given.docs:
        given.docs.write_text(page)


def _seconds(vocabulary: Vocabulary, schema: Schema) -> float:
    begun = time.perf_counter()
    check_schema(schema, "schema")
    matcher = vocabulary.compile(whole(json_schema_rule(schema)))
    matcher.fill(np.zeros(SIZE // 32, np.int32))
    return time.perf_counter() - begun


def _page(seconds: dict[str, list[float]], refused: list[str]) -> str:
    every = [value for values in seconds.values() for value in values]
    lines = [
        "# Structured output: compiling schemas",
        "",
        f"{COUNT} JSON schemas of our own in the style of public ones (`bench/lib/schemas.py`). Written by",
        "`python -m bench.cpu.grammars --docs docs/evidence/structured-output.md`: one thread, 49,152 tokens, best of",
        f"{ROUNDS}: the check, the text, compiling and the first mask.",
        "",
        f"{len(every)} of {COUNT} compile. `tests/unit/grammar/test_corpus.py` draws documents at random under their",
        "masks, and each satisfies its schema.",
        "",
        "| kind | schemas | p50 ms | p99 ms | longest ms |",
        "|---|---|---|---|---|",
        *(_row(kind, values) for kind, values in sorted(seconds.items())),
        _row("all", every),
        "",
        "## Refusals",
        "",
        "Each of these keywords is refused with its name, in every place of a schema:",
        "",
        ", ".join(f"`{keyword}`" for keyword in UNSUPPORTED if _is_refused(keyword)) + ".",
        "",
    ]
    if refused:
        lines += ["Of the schemas above:", "", *(f"- {line}" for line in refused), ""]
    return "\n".join(lines)


def _row(kind: str, values: list[float]) -> str:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    times = (statistics.median(ordered), p99, ordered[-1])
    return f"| {kind} | {len(ordered)} | " + " | ".join(f"{value * 1000:.1f}" for value in times) + " |"


def _is_refused(keyword: str) -> bool:
    try:
        check_schema({"type": "object", "properties": {"a": {keyword: {"type": "integer"}}}}, "schema")
    except RequestError as error:
        return repr(keyword) in str(error)
    return False


if __name__ == "__main__":
    main()
