"""aiperf: arguments for a load, and the figures of its export."""

from __future__ import annotations

import json
from pathlib import Path

from bench.tools.load import Api, Figures, Hub, Target, ToolLoad, write_prompts

_TYPES: dict[Api, str] = {
    "completions": "completions",
    "chat": "chat",
    "responses": "responses",
    "messages": "messages",
    "embeddings": "embeddings",
}


def arguments(target: Target, load: ToolLoad, hub: Hub, folder: Path) -> list[str]:
    """The arguments of `aiperf`."""
    given = {
        "--model": target.model,
        "--url": target.url,
        "--api-key": target.key,
        "--endpoint-type": _TYPES[load.api],
        "--tokenizer": hub.name,
        "--request-count": str(load.requests),
        "--output-artifact-dir": str(folder),
        "--ui": "none",
    }
    pairs = [part for pair in (given | _pace(load) | _data(load, folder)).items() for part in pair]
    streaming = [] if load.api == "embeddings" else ["--streaming", *_greedy(load)]
    metrics = ["--server-metrics", *target.metrics] if target.metrics else ["--no-server-metrics"]
    return ["profile", *pairs, *streaming, *metrics, "--no-gpu-telemetry"]


def _pace(load: ToolLoad) -> dict[str, str]:
    if load.rate:
        return {"--request-rate": str(load.rate), "--arrival-pattern": "constant"}
    return {"--concurrency": str(load.concurrency)}


def _data(load: ToolLoad, folder: Path) -> dict[str, str]:
    out = {} if load.api == "embeddings" else {"--osl": str(load.output_tokens)}
    if not load.prompts:
        return out | {"--isl": str(load.prompt_tokens), "--isl-stddev": "0"}
    prompts = write_prompts(folder, [{"text": text} for text in load.prompts])
    return out | {"--input-file": prompts, "--custom-dataset-type": "single_turn"}


def _greedy(load: ToolLoad) -> list[str]:
    # It reads the usage of a response only if that ends before its limit; else it counts the text's tokens itself.
    counted = [] if load.api == "responses" else ["--use-server-token-count"]
    long = [] if load.api in {"responses", "messages"} else ["--extra-inputs", "ignore_eos:true"]
    return ["--extra-inputs", "temperature:0", *counted, *long]


def figures(folder: Path) -> Figures:
    """The figures of the export."""
    found = json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    first, between = found.get("time_to_first_token") or {}, found.get("inter_token_latency") or {}
    return Figures(
        completed=int(found["request_count"]["avg"]),
        failed=int((found.get("error_request_count") or {"avg": 0})["avg"]),
        tokens=(found.get("total_output_tokens") or {"avg": 0})["avg"],
        rate=(found.get("output_token_throughput") or {"avg": 0})["avg"],
        ttft=first.get("avg"),
        ttft_p50=first.get("p50"),
        itl=between.get("avg"),
    )
