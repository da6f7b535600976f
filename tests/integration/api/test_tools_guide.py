"""The examples of the guide to tools, structured output and reasoning run, one after the other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.support.documents import ROOT, blocks

from .conftest import MODEL, Running, Start

GUIDE = ROOT / "docs/guides/tools-and-structured-output.md"
EXAMPLES = list(blocks(GUIDE, "python"))
# A template that begins the thinking, as those of reasoning models do. The built-in model has none.
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}"""
REASONING = "qwen3"


def title(example: str) -> str:
    """The heading above an example."""
    before = GUIDE.read_text().partition(example)[0]
    return before.rpartition("\n#")[2].lstrip("#").splitlines()[0].strip()


@pytest.fixture(scope="module")
def thinking_server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    """The built-in model in the place of one that thinks."""
    template = tmp_path_factory.mktemp("template") / "chat_template.jinja"
    template.write_text(TEMPLATE)
    flags = ["--served-model-name", REASONING, "--reasoning-parser", "think", "--chat-template", str(template)]
    return start(*flags)


def run(example: str, server: Running | None) -> str:
    """What an example prints with a server in the place of that on port 8000."""
    if server is not None:
        example = example.replace("http://localhost:8000", str(server.api.base_url).rstrip("/"))
    done = subprocess.run(
        [sys.executable, "-c", example], env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{example}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("example", [one for one in EXAMPLES if f'"{REASONING}"' not in one], ids=title)
def test_an_example_runs(example: str, request: pytest.FixtureRequest) -> None:
    server = None if "octavo_inference" in example else request.getfixturevalue("server")
    assert run(example, server).strip()


@pytest.mark.parametrize("example", [one for one in EXAMPLES if f'"{REASONING}"' in one], ids=title)
def test_an_example_of_reasoning_runs(example: str, thinking_server: Running) -> None:
    shown = run(example, thinking_server)
    thought, _, answer = shown.partition("answer: ")
    assert thought.removeprefix("thinking: ").strip()
    assert answer.split()[0] in {"yes", "no"}


def test_examples_name_the_built_in_model() -> None:
    assert EXAMPLES
    assert all(f'"{MODEL}"' in one or f'"{REASONING}"' in one for one in EXAMPLES)
