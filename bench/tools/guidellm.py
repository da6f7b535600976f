"""guidellm: arguments for a load, and the figures of its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.tools.load import Api, Figures, Hub, Target, ToolLoad, write_prompts

_ROUTES: dict[Api, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
}


def arguments(target: Target, load: ToolLoad, hub: Hub, folder: Path) -> list[str]:
    """The arguments of `guidellm`."""
    backend = {
        "kind": "openai_http",
        "target": target.url,
        "model": target.model,
        "api_key": target.key,
        "request_format": _ROUTES[load.api],
        "extras": {"body": {"temperature": 0}} if load.api in {"completions", "chat"} else None,
    }
    options = {
        "backend": backend,
        "tokenizer": {"kind": "huggingface_auto", "model": str(hub.folder)},
        "profile": _profile(load),
        "constraint": {"kind": "max_requests", "count": load.requests},
        "data": _data(load, folder),
        "output": {"kind": "json", "path": str(folder / "report.json")},
    }
    given = [part for name, value in options.items() for part in (f"--{name}", json.dumps(value))]
    return ["run", *given, "--disable-console-interactive"]


def _profile(load: ToolLoad) -> dict[str, Any]:
    if load.rate:
        return {"kind": "constant", "rate": [load.rate]}
    return {"kind": "concurrent", "streams": [load.concurrency]}


def _data(load: ToolLoad, folder: Path) -> dict[str, Any]:
    if not load.prompts:
        sizes = {"prompt_tokens": load.prompt_tokens, "output_tokens": load.output_tokens}
        return {"kind": "synthetic_text"} | sizes
    rows = [{"prompt": text, "output_tokens_count": load.output_tokens} for text in load.prompts]
    return {"kind": "json_file", "path": write_prompts(folder, rows)}


def figures(folder: Path) -> Figures:
    """The figures of the report."""
    [run] = json.loads((folder / "report.json").read_text(encoding="utf-8"))["benchmarks"]
    metrics = run["metrics"]
    counts = metrics["request_totals"]
    first, between = (metrics[f"{name}_ms"]["successful"] for name in ("time_to_first_token", "inter_token_latency"))
    return Figures(
        completed=counts["successful"],
        failed=counts["errored"] + counts["incomplete"],
        tokens=metrics["output_token_count"]["successful"]["total_sum"],
        rate=metrics["output_tokens_per_second"]["successful"]["mean"],
        ttft=first["mean"],
        ttft_p50=first["median"],
        itl=between["mean"],
    )
