"""`vllm bench serve`: arguments for a load, and the figures of its result."""

from __future__ import annotations

import json
from pathlib import Path

from bench.tools.load import Api, Figures, Hub, Target, ToolLoad, write_prompts

_BACKENDS: dict[Api, tuple[str, str]] = {
    "completions": ("openai", "/v1/completions"),
    "chat": ("openai-chat", "/v1/chat/completions"),
    "embeddings": ("openai-embeddings", "/v1/embeddings"),
}


def arguments(target: Target, load: ToolLoad, hub: Hub, folder: Path) -> list[str]:
    """The arguments of `vllm`. It reads the key from OPENAI_API_KEY."""
    backend, endpoint = _BACKENDS[load.api]
    given = {
        "--backend": backend,
        "--base-url": target.url,
        "--endpoint": endpoint,
        "--model": target.model,
        "--tokenizer": str(hub.folder),
        "--num-prompts": str(load.requests),
        "--result-dir": str(folder),
        "--result-filename": "result.json",
    }
    pairs = [part for pair in (given | _pace(load) | _data(load, folder)).items() for part in pair]
    greedy = [] if load.api == "embeddings" else ["--ignore-eos", "--temperature", "0"]
    plain = ["--skip-chat-template"] if load.prompts else []
    return ["bench", "serve", *pairs, *greedy, *plain, "--save-result", "--save-detailed", "--disable-tqdm"]


def _pace(load: ToolLoad) -> dict[str, str]:
    if load.rate:
        return {"--request-rate": str(load.rate), "--burstiness": "inf"}
    return {"--max-concurrency": str(load.concurrency)}


def _data(load: ToolLoad, folder: Path) -> dict[str, str]:
    if not load.prompts:
        sizes = {"--random-input-len": str(load.prompt_tokens), "--random-output-len": str(load.output_tokens)}
        return {"--dataset-name": "random"} | sizes
    prompts = write_prompts(folder, [{"prompt": text} for text in load.prompts])
    return {"--dataset-name": "custom", "--dataset-path": prompts, "--custom-output-len": str(load.output_tokens)}


def figures(folder: Path) -> Figures:
    """The figures of the result."""
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return Figures(
        completed=found["completed"],
        failed=found["num_prompts"] - found["completed"],
        tokens=found.get("total_output_tokens", 0),
        rate=found.get("output_throughput", 0),
        ttft=found.get("mean_ttft_ms"),
        ttft_p50=found.get("median_ttft_ms"),
        itl=found.get("mean_tpot_ms"),
    )
