"""The command line of `octavo-server bench`."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import logging
import platform
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from octavo_common import json_logs
from octavo_inference.common.errors import OctavoError, SettingsError
from octavo_inference.config.server import engine_parser, server_settings
from octavo_inference.core.engine import Engine
from octavo_inference.download.hub_cache import local_model
from octavo_inference.engine.factory import LoadedEngine, engine_for
from octavo_inference.engine.process import engine_settings
from octavo_inference.model_loader import ForeignModel, LoadedModel, load_model
from octavo_inference.tools.bench.loads import BenchLoad, Kind, LoadResult, answer, measure
from octavo_protocol.server_settings import ServerSettings

_DESCRIPTION = """Measure how fast a model runs on this machine: prompt, decode and mixed loads of random tokens through
the engine, in this process, without HTTP. Each load runs once to warm up and then --repetitions times."""
# Prompt tokens before a decode load.
_CONTEXT = 16
_LARGEST = 2**20
_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status: 0 measured, 1 the model or a load cannot run, 2 a wrong setting."""
    try:
        settings, given = parse(argv)
    except OctavoError as error:
        sys.stderr.write(f"octavo-server bench: {error}\n")
        return 2
    json_logs.configure("text")
    logging.getLogger("octavo_inference").setLevel(logging.ERROR)  # the table contains the engine's sizes
    try:
        about, results = run(settings, loads_of(given), given.repetitions)
    except OctavoError as error:
        sys.stderr.write(f"octavo-server bench: {error}\n")
        return 1
    sys.stdout.write(FORMATS[given.format](about, [row(result) for result in results]))
    return 0


def parse(argv: Sequence[str]) -> tuple[ServerSettings, argparse.Namespace]:
    """The engine's settings, and the flags of this tool. Raises `SettingsError`."""
    given = _parser().parse_args(argv)
    if given.path is not None and given.model is not None:
        raise SettingsError(f"MODEL: {given.path!r} and --model {given.model!r}: name the model once", "MODEL")
    given.model = given.path or given.model or ServerSettings().engine.model
    if not loads_of(given):
        raise SettingsError("--prompt: 0, and --decode 0: leave one of them out, or give --mixed", "--prompt")
    return server_settings(vars(given)), given


def _parser() -> argparse.ArgumentParser:
    parser = engine_parser("octavo-server bench", _DESCRIPTION)
    parser.set_defaults(model=None)
    parser.add_argument("path", nargs="?", metavar="MODEL", help="as --model")
    bench = parser.add_argument_group("loads; lists are separated by commas")
    bench.add_argument(
        "--prompt", type=_counts(0), default=[512], metavar="TOKENS", help="prompt loads; 0: none (default: 512)"
    )
    bench.add_argument(
        "--decode", type=_counts(0), default=[128], metavar="TOKENS", help="decode loads; 0: none (default: 128)"
    )
    bench.add_argument(
        "--mixed", type=_pairs, default=[], metavar="IN+OUT", help="mixed loads, such as 512+128 (default: none)"
    )
    bench.add_argument(
        "--batch", type=_counts(1), default=[1], metavar="N", help="sequences at once, for each load (default: 1)"
    )
    bench.add_argument("--repetitions", type=_count, default=3, metavar="N", help="of each load (default: 3)")
    bench.add_argument("--format", choices=tuple(FORMATS), default="table", help="(default: table)")
    return parser


def _count(text: str) -> int:
    return _counts(1)(text)[0]


def _counts(least: int) -> Callable[[str], list[int]]:
    def convert(text: str) -> list[int]:
        return [_whole(part, least, text) for part in text.split(",")]

    return convert


def _pairs(text: str) -> list[tuple[int, int]]:
    found = [re.fullmatch(r"(\d+)\+(\d+)", part) for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not tokens in and out; write them like 512+128,1024+256")
    return [(_whole(pair[1], 1, text), _whole(pair[2], 1, text)) for pair in found if pair]


def _whole(part: str, least: int, text: str) -> int:
    if re.fullmatch(r"\d{1,7}", part) is None or not least <= int(part) <= _LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers from {least} to {_LARGEST}, such as 1,8,64")
    return int(part)


def loads_of(given: argparse.Namespace) -> list[BenchLoad]:
    """The loads that the flags select, each kind with every batch size."""
    sizes: list[tuple[Kind, int, int]] = [("prompt", tokens, 1) for tokens in given.prompt if tokens]
    sizes += [("decode", _CONTEXT, tokens) for tokens in given.decode if tokens]
    sizes += [("mixed", *pair) for pair in given.mixed]
    return [BenchLoad(kind, batch, prompt, decode) for kind, prompt, decode in sizes for batch in given.batch]


def run(
    settings: ServerSettings, loads: Sequence[BenchLoad], repetitions: int
) -> tuple[dict[str, Any], list[LoadResult]]:
    """Load the model and run all loads. Returns the test environment and the results. Raises `OctavoError`."""
    model = load_model(local_model(settings.engine.model).path)
    loaded = engine_for(engine_settings(settings), model)
    for load in loads:
        require_room(loaded.engine, load)
    answer(loaded.engine, [[0]], [2])
    while loaded.engine.backend.idle():  # a GPU captures its remaining graphs here, as a server does in idle moments
        pass
    results = []
    for load in loads:
        results.append(measure(loaded.engine, load, repetitions))
        sys.stderr.write(f"{load.name} x {load.batch}: {results[-1].mean:.1f} tokens/s\n")
    return about(settings, model, loaded), results


def require_room(engine: Engine, load: BenchLoad) -> None:
    """Raises `SettingsError` if the load's sequences do not fit into one batch."""
    limits, tokens = engine.limits, load.prompt + load.answer
    if load.batch > limits.max_running:
        raise SettingsError(
            f"--batch: {load.batch} sequences at once, and a step has room for {limits.max_running}: give "
            f"--max-running-requests {load.batch}",
            "--batch",
        )
    if tokens > limits.max_model_len:
        raise SettingsError(
            f"--{load.kind}: a sequence has {tokens} tokens, and this model serves {limits.max_model_len}: give fewer",
            f"--{load.kind}",
        )
    blocks = load.batch * -(-tokens // engine.backend.block_size)
    if blocks > engine.backend.num_blocks:
        raise SettingsError(
            f"--batch: {load.batch} sequences of {tokens} tokens need {blocks} KV blocks, {engine.backend.num_blocks} "
            "fit: give a smaller batch, or more --kv-memory",
            "--batch",
        )


def about(settings: ServerSettings, model: LoadedModel | ForeignModel, loaded: LoadedEngine) -> dict[str, Any]:
    """The test environment of the figures."""
    resolved = loaded.settings
    return {
        "octavo": version("octavo"),
        "model": model.text.name,
        "weights": weight_formats(model),
        "dtype": resolved.dtype,
        "quantization": resolved.quantization,
        "kv_dtype": resolved.kv_dtype,
        "device": loaded.engine.backend.name,
        "instruction_set": instruction_set(resolved.backend),
        "processor": processor(),
        "threads": resolved.threads,
        "profile": settings.engine.profile,
        "block_size": resolved.block_size,
        "max_running_requests": resolved.max_running_requests,
        "max_batched_tokens": resolved.max_batched_tokens,
    }


def weight_formats(model: LoadedModel | ForeignModel) -> str:
    """Formats of the checkpoint's matrices, the most frequent first."""
    if isinstance(model, ForeignModel):
        return "as transformers loads them"
    weights = model.weights
    names = [getattr(layer, name).format for layer in weights.layers for name in _MATRICES]
    names.append(weights.lm_head.format)
    return ", ".join(sorted(set(names), key=lambda name: -names.count(name)))


def instruction_set(backend: str) -> str | None:
    """Instruction set of the native CPU kernels; None for other backends."""
    if backend != "cpu":
        return None
    from octavo_inference.backends.cpu.native.library import load  # noqa: PLC0415 -- opens the kernels

    return load().variant


def processor() -> str:
    """Name of the processor, as the system reports it."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        info = ""
    found = re.search(r"^model name\s*: (.+)$", info, re.MULTILINE)
    return found[1] if found else platform.machine()


def row(result: LoadResult) -> dict[str, Any]:
    """A result with the field names of JSON and CSV."""
    load = result.load
    return {
        "test": load.name,
        "kind": load.kind,
        "batch": load.batch,
        "prompt_tokens": load.prompt,
        "output_tokens": load.decode,
        "tokens_per_s": round(result.mean, 3),
        "stddev": round(result.stddev, 3),
        "ttft_ms_p50": round(result.ttft, 3),
        "itl_ms_p50": None if result.itl is None else round(result.itl, 3),
        "rates": [round(sample.rate, 3) for sample in result.samples],
    }


_HEADS = ("test", "batch", "tokens/s", "stddev", "first token p50, ms", "inter-token p50, ms")


def cells(found: dict[str, Any]) -> list[str]:
    """A row of the table."""
    itl = "" if found["itl_ms_p50"] is None else f"{found['itl_ms_p50']:.2f}"
    figures = [f"{found['tokens_per_s']:.2f}", f"{found['stddev']:.2f}", f"{found['ttft_ms_p50']:.2f}", itl]
    return [found["test"], str(found["batch"]), *figures]


def _sentence(about: dict[str, Any]) -> str:
    shown = [f"{name.replace('_', ' ')} {value}" for name, value in about.items() if value is not None]
    return ", ".join(shown) + "\n\n"


def table(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Format the results as columns for a terminal."""
    lines = [list(_HEADS), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines)
    return _sentence(about) + "\n".join(text) + "\n"


def markdown(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Format the results as a Markdown table."""
    lines = [_HEADS, ("---", *["--:"] * (len(_HEADS) - 1)), *map(cells, rows)]
    return _sentence(about) + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_json(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Format all figures as JSON."""
    return json.dumps(about | {"results": rows}, indent=1) + "\n"


def as_csv(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Format the results as CSV: a line per load, with the test environment."""
    lines = [about | {name: value for name, value in found.items() if name != "rates"} for found in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(itertools.chain(lines[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


FORMATS: dict[str, Callable[[dict[str, Any], list[dict[str, Any]]], str]] = {
    "table": table,
    "markdown": markdown,
    "json": as_json,
    "csv": as_csv,
}
