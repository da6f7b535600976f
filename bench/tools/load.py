"""The load that all tools send, the server they send it to, and the figures they report."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from bench.lib.loads import SEED
from octavo_inference.tokenizer.assets import load_assets

Api = Literal["completions", "chat", "responses", "messages", "embeddings"]
# A token with the space before it: texts of such words have as many tokens as words.
_WORD = re.compile("Ġ[a-z]{2,}")
_REVISION = "0" * 40


@dataclass(frozen=True, slots=True)
class Target:
    """A server or a gateway. `url` has no path. `metrics`: addresses of its Prometheus metrics."""

    url: str
    model: str
    key: str
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolLoad:
    """`requests` streams, each with the same number of tokens in and out.

    `concurrency` of them are sent at a time, or, with a `rate`, this many a second, however many are answered. Tools
    send `prompts`. Without prompts they make their own, of random words.
    """

    requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    api: Api = "completions"
    rate: float = 0.0
    prompts: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Output tokens of all requests."""
        return self.requests * self.output_tokens

    @property
    def judged(self) -> tuple[str, ...]:
        """The figures in which clients must agree.

        The rate of tokens follows from a given rate of requests. With several requests at a time, the time to first
        token depends on how closely they follow each other: together they wait for each other's prompts.
        """
        if self.rate:
            return ("ttft", "itl")
        return ("rate", "ttft", "itl") if self.concurrency == 1 else ("rate", "itl")

    @property
    def name(self) -> str:
        """Name in tables."""
        sent = f"{self.rate:g} a second" if self.rate else f"{self.concurrency} at once"
        return f"{self.requests} × {self.prompt_tokens}+{self.output_tokens}, {sent}"


@dataclass(frozen=True, slots=True)
class Figures:
    """A run as a tool reports it; None: the tool does not report it.

    `ttft` and `ttft_p50`: mean and median of the times to first token. `itl`: mean of the requests' mean times between
    tokens. Times are in ms, tokens are those of all answers.
    """

    completed: int
    failed: int
    tokens: float
    rate: float
    ttft: float | None
    ttft_p50: float | None
    itl: float | None


@dataclass(frozen=True, slots=True)
class Hub:
    """A cache of the hub, for programs that must not ask the hub, with one entry: the model's tokenizer.

    Some programs take the `folder` of the tokenizer, others only a `name` that they find in the cache at `home`.
    """

    home: Path
    name: str = "octavo/smollm2"

    @property
    def folder(self) -> Path:
        """The folder with the tokenizer."""
        return self._entry / "snapshots" / _REVISION

    def write(self, model: str = "smollm2") -> Hub:
        """Write the tokenizer of a model as transformers reads it: no tool reads GGUF files. Returns this cache."""
        assets = load_assets(model)
        for folder in (self.folder, self._entry / "refs"):
            folder.mkdir(parents=True, exist_ok=True)
        (self._entry / "refs/main").write_text(_REVISION, encoding="utf-8")
        assets.tokenizer.save(str(self.folder / "tokenizer.json"))
        settings = {"tokenizer_class": assets.tokenizer_class, "chat_template": assets.chat_template}
        text = json.dumps(settings | assets.special_tokens)
        (self.folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
        return self

    @property
    def _entry(self) -> Path:
        return self.home / "hub" / f"models--{self.name.replace('/', '--')}"


def texts(tokenizer: Tokenizer, count: int, tokens: int) -> tuple[str, ...]:
    """Texts of random words, each with this number of tokens, the same in every run."""
    words = sorted(word[1:] for word in tokenizer.get_vocab() if _WORD.fullmatch(word))
    drawn = _texts(random.Random(SEED), words, tokens)
    return tuple(next(text for text in drawn if len(tokenizer.encode(text).ids) == tokens) for _ in range(count))


def _texts(rng: random.Random, words: list[str], tokens: int) -> Iterator[str]:
    while True:
        yield " ".join(rng.choices(words, k=tokens))


def write_prompts(folder: Path, rows: list[dict[str, Any]]) -> str:
    """Write prompts for a tool, a row of JSON for each; the path."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
