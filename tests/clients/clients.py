"""The clients that are tested, and which features each has."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path

from tests.clients.environments import LOCKS
from tests.clients.families.checks import FEATURES

SCRIPTS = Path(__file__).parent / "families"


@dataclass(frozen=True)
class Client:
    """A client library. `environment` is the name of a lock, `packages` are those of the library in it.

    A client whose calls are written down by hand has no packages, and says of which version they are.
    """

    name: str
    environment: str
    script: str
    packages: tuple[str, ...]
    by_hand: str = ""

    @property
    def path(self) -> Path:
        """The script with its checks."""
        return SCRIPTS / self.script

    def versions(self) -> dict[str, str]:
        """The pinned version of each package. Raises `LookupError` if the lock has none."""
        return {package: _pinned(self.environment, package) for package in self.packages}

    def version(self) -> str:
        """The versions in words."""
        versions = self.versions()
        if len(versions) == 1:
            return next(iter(versions.values()))
        return self.by_hand or "<br>".join(f"{name} {version}" for name, version in versions.items())

    def features(self) -> dict[str, str]:
        """Each feature, with the reason why the client does not have it, or an empty text."""
        read = _of_node if self.path.suffix == ".mjs" else _of_python
        found = read(self.path.read_text())
        if found.keys() != set(FEATURES):
            raise LookupError(f"{self.script} has other features than {FEATURES}")
        return {feature: found[feature] for feature in FEATURES}


def _python(name: str, *packages: str, script: str = "") -> Client:
    return Client(name, name, f"check_{(script or name).replace('-', '_')}.py", packages or (name,))


def _node(name: str, *packages: str, environment: str = "node") -> Client:
    return Client(name, environment, f"check_{name.replace('-', '_')}.mjs", packages)


CLIENTS = (
    _python("openai"),
    _python("openai-2", "openai", script="openai"),
    _python("anthropic"),
    _python("litellm"),
    _python("langchain", "langchain", "langchain-openai"),
    _python("llama-index", "llama-index-core", "llama-index-llms-openai-like", "llama-index-embeddings-openai-like"),
    _python("instructor"),
    _python("pydantic-ai", "pydantic-ai-slim"),
    _python("openai-agents"),
    _python("haystack", "haystack-ai"),
    _python("dspy"),
    _python("semantic-kernel"),
    _node("openai-node", "openai"),
    _node("anthropic-node", "@anthropic-ai/sdk"),
    _node("ai-sdk", "ai", "@ai-sdk/openai-compatible"),
    _node("continue", "@continuedev/openai-adapters", environment="continue"),
    _python("aider", "aider-chat"),
    Client("open-webui", "openai", "check_open_webui.py", (), by_hand="0.6, its calls written down"),
)


def _pinned(environment: str, package: str) -> str:
    if (of_node := LOCKS / environment / "package-lock.json").exists():
        packages = json.loads(of_node.read_text())["packages"]
        return str(packages[f"node_modules/{package}"]["version"])
    lock = (LOCKS / f"{environment}.txt").read_text()
    found = re.search(rf"^{re.escape(package)}(?:\[[^\]]*\])?==(\S+)", lock, re.MULTILINE)
    if found is None:
        raise LookupError(f"{package} is not in the lock of {environment}")
    return found[1]


def _of_python(text: str) -> dict[str, str]:
    """From the call `run(chat=..., ...)` of a script."""
    [call] = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "run"
    ]
    return {
        keyword.arg or "**": str(keyword.value.value) if isinstance(keyword.value, ast.Constant) else ""
        for keyword in call.keywords
    }


def _of_node(text: str) -> dict[str, str]:
    """From the call `run({ chat, embeddings: "reason" })` of a script, an entry on each line."""
    [entries] = re.findall(r"^await run\(\{\n(.*?)^\}\);", text, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r'^  (\w+)(?::\s+"([^"]*)")?', entries, re.MULTILINE))
