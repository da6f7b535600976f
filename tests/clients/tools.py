"""The tools that send loads and evaluate: what is tried of each, with a server and with a gateway."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.clients.environments import LOCKS, ROOT

from bench.tools.load import Api
from bench.tools.table import AIPERF, GUIDELLM, INFERENCE_PERF, VLLM, LoadTool


@dataclass(frozen=True)
class Tool:
    """A tool, and what is tried of it. `lock` has its package, which has the same name."""

    name: str
    lock: Path
    tried: tuple[str, ...]

    @property
    def environment(self) -> str | None:
        """The name of the lock, if it is one of requirements/clients."""
        return self.lock.stem if self.lock.parent == LOCKS else None

    @property
    def version(self) -> str:
        """The pinned version. Raises `LookupError` if the lock has none."""
        found = re.search(rf"^{re.escape(self.name)}(?:\[[^\]]*\])?==(\S+)", self.lock.read_text(), re.MULTILINE)
        if found is None:
            raise LookupError(f"{self.name} is not in {self.lock.name}")
        return found[1]


LOADS: dict[LoadTool, tuple[Api, ...]] = {
    GUIDELLM: ("completions", "chat", "responses", "embeddings"),
    AIPERF: ("completions", "chat", "responses", "messages", "embeddings"),
    VLLM: ("completions", "chat", "embeddings"),
    INFERENCE_PERF: ("completions", "chat", "messages"),
}
EVALUATIONS = (
    "local-completions: log-likelihoods by echo and logprobs",
    "local-completions: the same with the server's tokenizer",
    "local-completions: generation",
    "local-chat-completions: generation",
)


def _lock(environment: str) -> Path:
    return LOCKS / f"{environment}.txt"


TOOLS = (
    Tool("lm-eval", _lock("lm-eval"), EVALUATIONS),
    *(Tool(tool.name, _lock(tool.name), apis) for tool, apis in LOADS.items()),
    Tool("schemathesis", ROOT / "requirements/dev.txt", ("`st run`: every operation, all checks",)),
)
