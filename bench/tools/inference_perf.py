"""inference-perf: arguments for a load, and the figures of its reports. It makes its own prompts, always; no rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.tools.load import Api, Figures, Hub, Target, ToolLoad

_TYPES: dict[Api, str] = {"completions": "completion", "chat": "chat", "messages": "anthropic_messages"}


def arguments(target: Target, load: ToolLoad, hub: Hub, folder: Path) -> list[str]:
    """The arguments of `inference-perf`. It reads JSON as YAML."""
    config = {
        "api": {"type": _TYPES[load.api], "streaming": True},
        "server": {"base_url": target.url, "model_name": target.model, "api_key": target.key, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(hub.folder)},
        "data": _data(load),
        "load": {
            "type": "concurrent",
            "stages": [{"num_requests": load.requests, "concurrency_level": load.concurrency}],
            "num_workers": 1,
            "base_seed": 0,
        },
        "report": {"request_lifecycle": {"use_server_output_tokens": True}},
        "storage": {"local_storage": {"path": str(folder / "reports")}},
    }
    path = folder / "config.yml"
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    return ["--config_file", str(path)]


def _data(load: ToolLoad) -> dict[str, Any]:
    """What it has for an API: random tokens, questions behind a system prompt, or `mock prompt N` and 30 tokens out."""
    if load.api == "messages":
        return {"type": "mock"}
    if load.api == "completions":
        return {"type": "random"} | {
            f"{name}_distribution": {"type": "fixed", "min": tokens, "max": tokens, "mean": tokens, "std_dev": 0}
            for name, tokens in (("input", load.prompt_tokens), ("output", load.output_tokens))
        }
    system = load.prompt_tokens // 2
    prompts = {"num_unique_system_prompts": load.requests, "num_users_per_system_prompt": 1, "seed": 0}
    sizes = {"system_prompt_len": system, "question_len": load.prompt_tokens - system, "output_len": load.output_tokens}
    return {"type": "shared_prefix", "shared_prefix": prompts | sizes}


def figures(folder: Path) -> Figures:
    """The figures of the summary. Its times are in seconds, and missing for the Messages API."""
    [summary] = folder.glob("reports/summary_lifecycle_metrics.json")
    found = json.loads(summary.read_text(encoding="utf-8"))
    good = found["successes"]
    times = {name: values or {} for name, values in good["latency"].items()}
    return Figures(
        completed=good["count"],
        failed=found["failures"]["count"],
        tokens=good["output_tokens"]["total"],
        rate=good["throughput"]["output_tokens_per_sec"],
        ttft=_ms(times["time_to_first_token"].get("mean")),
        ttft_p50=_ms(times["time_to_first_token"].get("median")),
        itl=_ms(times["time_per_output_token"].get("mean")),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
