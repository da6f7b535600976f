"""The same load by our own clients: over HTTP, and `octavo-server bench`, which has no HTTP."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from bench.lib.processes import ROOT
from bench.lib.sse import Answer, connect
from bench.tools.load import Figures, Target, ToolLoad

PATIENCE = 600.0


async def over_http(target: Target, load: ToolLoad) -> Figures:
    """Send the load. RuntimeError if an answer has another length than was asked for."""
    port = urlsplit(target.url).port or 80
    bodies = [message(target, text, load.output_tokens) for text in load.prompts]
    room = asyncio.Semaphore(len(bodies) if load.rate else load.concurrency)
    begin = time.perf_counter()

    async def one(number: int, body: bytes) -> tuple[float, Answer]:
        if load.rate:
            await asyncio.sleep(begin + number / load.rate - time.perf_counter())
        async with room:
            sent = time.perf_counter()
            answer = await connect(port, body)
            await answer.done
        if answer.completion_tokens != load.output_tokens:
            raise RuntimeError(f"{answer.completion_tokens} tokens came, {load.output_tokens} were asked for")
        return sent, answer

    async with asyncio.timeout(PATIENCE):
        return _figures(await asyncio.gather(*(one(*each) for each in enumerate(bodies))), load)


def _figures(answers: Sequence[tuple[float, Answer]], load: ToolLoad) -> Figures:
    seconds = max(answer.times[-1] for _, answer in answers) - min(sent for sent, _ in answers)
    first = [1e3 * (answer.times[0] - sent) for sent, answer in answers]
    # Text may wait for the next token, so events may be fewer than tokens; the last one comes with the last token.
    between = [1e3 * (answer.times[-1] - answer.times[0]) / (load.output_tokens - 1) for _, answer in answers]
    return Figures(
        completed=len(answers),
        failed=0,
        tokens=load.tokens,
        rate=load.tokens / seconds,
        ttft=statistics.mean(first),
        ttft_p50=statistics.median(first),
        itl=statistics.mean(between),
    )


def message(target: Target, text: str, tokens: int) -> bytes:
    """A complete HTTP request for a greedy stream that ends by length."""
    fields = {"model": target.model, "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body = json.dumps(fields | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {target.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def in_process(load: ToolLoad, flags: Sequence[str]) -> Figures:
    """`octavo-server bench`: the requests in batches of `concurrency`, all of a batch at once. Medians alone."""
    repetitions = max(1, load.requests // load.concurrency)
    sizes = ["--mixed", f"{load.prompt_tokens}+{load.output_tokens}", "--batch", str(load.concurrency)]
    command = [
        sys.executable, "-m", "octavo_inference", "bench", *flags, "--prompt", "0", "--decode", "0", *sizes,
        "--repetitions", str(repetitions), "--format", "json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode:
        raise RuntimeError(f"octavo-server bench: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)["results"][0]
    count = repetitions * load.concurrency
    return Figures(
        completed=count,
        failed=0,
        tokens=count * load.output_tokens,
        rate=found["tokens_per_s"],
        ttft=None,
        ttft_p50=found["ttft_ms_p50"],
        itl=found["itl_ms_p50"],
    )
