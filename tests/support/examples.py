"""Examples in documents: fenced code that tests run as it is, and the output that the page shows below it.

The examples of a page in one language are one program: each may use names of those above it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.documents import SITE, text

ADDRESS = "localhost:8000"
# Of a model that thinks.
THINKING_ADDRESS = "localhost:8001"
# A template that begins the thinking, as those of reasoning models do. The built-in model has none.
_THINKING_TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}"""

_MARK = "\x1e"  # between the outputs of two examples
_SUFFIXES = {"python": ".py", "js": ".mjs", "sh": ".sh"}
_MARKERS = {
    "python": 'print("\\x1e", end="", flush=True)\n',
    "js": 'process.stdout.write("\\x1e");\n',
    "sh": "printf '\\036'\n",
}
_STARTS = {"python": "", "js": "", "sh": "set -eu\n"}
LANGUAGES = tuple(_SUFFIXES)
OUTPUTS = ("text", "json")
_PART = re.compile(r"^```([^\n`]*)\n(.*?)^```$|^#+ [^\n]+$", re.MULTILINE | re.DOTALL)
_ERROR = re.compile(r'"error": ?\{')


@dataclass(frozen=True, slots=True)
class Example:
    """A block of code. `shown` is the output that the page shows for it; `…` in it stands for one character or more."""

    language: str
    code: str
    shown: str = ""

    def fits(self, output: str) -> bool:
        """Whether the output is the shown one. If none is shown, it is no error, and curl has an answer."""
        if not self.shown:
            return not _ERROR.search(output) and (self.language != "sh" or bool(output.strip()))
        try:
            shown, found = _one_form(self.shown), _one_form(output)
        except ValueError:
            shown, found = self.shown.strip(), output.strip()
        return re.fullmatch(re.escape(shown).replace("…", ".+?"), found, re.DOTALL) is not None


def fences(page: Path) -> list[tuple[str, str]]:
    """Language and code of each fenced block of a page."""
    return [(part[1], part[2]) for part in _PART.finditer(text(page)) if part[2] is not None]


def examples(page: Path, language: str) -> list[Example]:
    """The examples of a page. An output belongs to all examples between it and the output or heading before it."""
    found: list[Example] = []
    begin = 0
    for part in _PART.finditer(text(page)):
        if part[1] in LANGUAGES:
            found.append(Example(part[1], part[2]))
            continue
        if part[1] in OUTPUTS:
            found[begin:] = [replace(example, shown=part[2]) for example in found[begin:]]
        begin = len(found)
    return [example for example in found if example.language == language]


def pages(language: str) -> list[Path]:
    """The pages with examples in a language."""
    return [page for page in SITE if examples(page, language)]


def check(page: Path, language: str, command: Sequence[str | Path], addresses: Mapping[str, str], folder: Path) -> None:
    """Run a page's examples in a language; `command` runs a file. `addresses` has an address for each that they name.

    Raises `AssertionError` if one fails, or prints something else than the page shows.
    """
    program = folder / f"program{_SUFFIXES[language]}"
    found = examples(page, language)
    code = _STARTS[language] + _MARKERS[language].join(example.code for example in found)
    for named, address in addresses.items():
        code = code.replace(named, address)
    program.write_text(code)
    done = subprocess.run(
        [*command, program], cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for example, output in zip(found, done.stdout.split(_MARK), strict=True):
        assert example.fits(output), f"{example.code}\nprinted\n{output}\nand the page shows\n{example.shown}"


def start_servers(start: Callable[..., Any], folder: Path) -> dict[str, str]:
    """Servers in the place of those that examples name, by `start` of tests/integration/api: their addresses."""
    template = folder / "chat_template.jinja"
    template.write_text(_THINKING_TEMPLATE)
    thinking = ["--served-model-name", "qwen3", "--reasoning-parser", "think", "--chat-template", str(template)]
    servers = {ADDRESS: start("--max-model-len", "4096"), THINKING_ADDRESS: start(*thinking)}
    return {address: server.api.base_url.netloc.decode() for address, server in servers.items()}


def _one_form(output: str) -> str:
    """JSON, whatever whitespace it has. Raises `ValueError` for other texts."""
    return json.dumps(json.loads(output), ensure_ascii=False)
