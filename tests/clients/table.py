"""Writes docs/evidence/clients.md, the clients that are tested and what of each: python -m tests.clients.table."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.clients.environments import LOCKS, ROOT

PAGE = ROOT / "docs/evidence/clients.md"
FOLDER = Path(__file__).parent / "families"
# The distributions of a family's lock that a client uses.
PACKAGES = {
    "instructor": ("instructor",),
    "langchain": ("langchain", "langchain-openai"),
    "litellm": ("litellm",),
    "llama_index": ("llama-index-core", "llama-index-llms-openai-like", "llama-index-embeddings-openai-like"),
    "openai_agents": ("openai-agents",),
    "pydantic_ai": ("pydantic-ai-slim",),
}
_HEAD = """\
# Clients

Client libraries, unchanged, with a server and with a gateway in front of two replicas. `make test-clients` runs each check
below with both, in an environment for each client, and `python -m tests.clients.table` writes this page.

| client | versions | checks |
|---|---|---|
"""
_TAIL = """
The official clients of OpenAI and Anthropic are in the tests of the server and the gateway.
"""


def page() -> str:
    """The page."""
    return _HEAD + "".join(map(row, sorted(PACKAGES))) + _TAIL


def row(family: str) -> str:
    """The row of a family: versions of its lock, and the docstrings of the checks that its script runs."""
    lock = (LOCKS / f"{family.replace('_', '-')}.txt").read_text()
    versions = [f"{name} {version(lock, name)}" for name in PACKAGES[family]]
    checks = "<br>".join(f"{name.replace('_', ' ')}: {words}" for name, words in checks_of(family).items())
    return f"| {family.replace('_', '-')} | {', '.join(versions)} | {checks} |\n"


def version(lock: str, name: str) -> str:
    """The pinned version of a distribution. Raises `LookupError` if the lock has none."""
    found = re.search(rf"^{re.escape(name)}(?:\[[^\]]*\])?==(\S+)", lock, re.MULTILINE)
    if found is None:
        raise LookupError(f"{name} is not in the lock")
    return found[1]


def checks_of(family: str) -> dict[str, str]:
    """First lines of the docstrings of the checks that a script runs, by name, in their order."""
    tree = ast.parse((FOLDER / f"check_{family}.py").read_text())
    words = {
        node.name: (ast.get_docstring(node) or "").partition("\n")[0]
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    [call] = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "run"]
    assert isinstance(call.args[0], ast.List)
    return {name.id: words[name.id] for name in call.args[0].elts if isinstance(name, ast.Name)}


if __name__ == "__main__":
    PAGE.write_text(page())
