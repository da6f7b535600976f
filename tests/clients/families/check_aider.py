"""aider: its command line answers and edits a file, its coder streams; errors, retries, Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aider.coders import Coder
from aider.exceptions import LiteLLMExceptions
from aider.io import InputOutput
from aider.llm import litellm
from aider.models import Model, register_litellm_models, register_models
from checks import (
    COUNT,
    LONG_ANSWER,
    LONG_PROMPT,
    QUESTION,
    WRONG_KEY,
    Place,
    asleep,
    assert_cancelled,
    raises,
    run,
)

# An answer that is cut counts as an error: this form ends before the limit.
SENTENCE = {"max_tokens": 96, "extra_body": {"structured_outputs": {"regex": "[A-Za-z ]{40,80}[.]"}}}
LISTING = {"max_tokens": 96, "extra_body": {"structured_outputs": {"choice": ["greeting.txt\n```\nhello\n```\n"]}}}
ENDLESS = {"max_tokens": LONG_ANSWER, "extra_body": {"ignore_eos": True}}
QUIET = [
    "--no-git", "--no-pretty", "--no-fancy-input", "--no-check-update", "--no-show-release-notes",
    "--no-show-model-warnings", "--analytics-disable", "--yes-always", "--map-tokens", "0",
]  # fmt: skip


def files(folder: Path, name: str, parameters: dict[str, Any]) -> dict[str, Path]:
    """A model's settings and metadata, as its users write them. Without metadata, it asks the internet for them."""
    metadata = {name: {"litellm_provider": "openai", "mode": "chat"}}
    settings = [{"name": name, "edit_format": "whole", "extra_params": parameters}]
    found = {}
    for kind, content in (("metadata", metadata), ("settings", settings)):
        found[kind] = folder / f"{kind}.json"  # JSON is YAML as well
        found[kind].write_text(json.dumps(content))
    return found


def process(place: Place, folder: Path, message: str, *more: str, **parameters: Any) -> subprocess.Popen[str]:
    """The command line with a message, in a folder of its own."""
    paths = files(folder, f"openai/{place.model}", parameters)
    access = ["--model", f"openai/{place.model}", "--openai-api-base", place.base_url, "--openai-api-key", place.key]
    options = ["--model-metadata-file", str(paths["metadata"]), "--model-settings-file", str(paths["settings"])]
    return subprocess.Popen(
        [sys.executable, "-m", "aider", *access, *options, *QUIET, *more, "--message", message],
        env=os.environ | {"HOME": str(folder)}, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def model(place: Place, name: str = "", key: str = "", **parameters: Any) -> Model:
    """A model with its settings. The address and the key are in the environment, where the command line puts them."""
    os.environ["OPENAI_API_BASE"] = place.base_url
    os.environ["OPENAI_API_KEY"] = key or place.key
    full = f"openai/{name or place.model}"
    with tempfile.TemporaryDirectory() as folder:
        paths = files(Path(folder), full, parameters)
        register_litellm_models([str(paths["metadata"])])
        register_models([str(paths["settings"])])
    return Model(full)


def coder(one: Model, *, stream: bool = True) -> Coder:
    """What chats with a model about code, and says no to each question."""
    terminal = InputOutput(pretty=False, yes=False, fancy_input=False)
    return Coder.create(
        main_model=one, edit_format="ask", io=terminal, fnames=[], use_git=False, map_tokens=0, stream=stream
    )


@contextlib.contextmanager
def shown() -> Iterator[io.StringIO]:
    """What it shows meanwhile."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        yield out


def words(text: str) -> str:
    """A text without the line breaks of a terminal."""
    return " ".join(text.split())


def chat_of_the_command_line(place: Place) -> None:
    """An answer, whole and streamed, which are the same, and the tokens of its usage."""
    with shown():
        answer = coder(model(place, **SENTENCE)).run(QUESTION)
    assert answer
    for way in ("--no-stream", "--stream"):
        with tempfile.TemporaryDirectory() as folder:
            out = process(place, Path(folder), QUESTION, "--chat-mode", "ask", way, **SENTENCE).communicate()[0]
        said, _, tokens = words(out).partition(" Tokens: ")
        assert said.endswith(words(answer)), out
        assert " sent, " in tokens
        assert " received." in tokens


def edit_of_the_command_line(place: Place) -> None:
    """A listing in the answer becomes the content of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "greeting.txt"
        path.write_text("")
        out = process(place, Path(folder), "Say hello.", path.name, **LISTING).communicate()[0]
        assert path.read_text() == "hello\n", out


def stream(place: Place) -> None:
    """The text of the whole answer."""
    with shown():
        parts = list(coder(model(place, **SENTENCE)).run_stream(QUESTION))
        whole = coder(model(place, **SENTENCE), stream=False).run(QUESTION)
    assert "".join(parts) == whole
    assert len(parts) > 2


def errors(place: Place) -> None:
    """Too long a prompt, an unknown model, a wrong key, and what it says to each; a limit, which it would wait for."""
    for changes, message, expected in (
        ({}, LONG_PROMPT, "has hit a token limit"),
        ({"name": "no-such-model"}, QUESTION, "no-such-model"),
        ({"key": WRONG_KEY}, QUESTION, "Check your API key."),
    ):
        with shown() as out:
            one = coder(model(place, **SENTENCE, max_retries=0, **changes))
            assert not one.run(message)
        assert expected in words(out.getvalue()), out.getvalue()
        assert one.num_exhausted_context_windows == (message == LONG_PROMPT)
    if place.limited_key:
        limited = model(place, key=place.limited_key, **SENTENCE, max_retries=0)
        messages = [{"role": "user", "content": QUESTION}]
        refused = raises(
            litellm.RateLimitError, lambda: [limited.send_completion(messages, None, stream=False) for _ in range(2)]
        )
        known = LiteLLMExceptions().get_ex_info(refused)
        assert known.retry
        assert "rate limited you" in known.description


def retries(place: Place) -> None:
    """Its own, without those of litellm and of OpenAI's client; and all together."""
    with asleep(place), shown() as out:
        assert coder(model(place, **SENTENCE, max_retries=0)).run(QUESTION)
    assert "Retrying in" in out.getvalue()
    with asleep(place), shown():
        assert coder(model(place, **SENTENCE)).run(QUESTION)


def cancel(place: Place) -> None:
    """Ctrl-C on the command line, while an answer streams and while a whole one is made."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job of a shell ignores, its children do as well
    for way in ("--no-stream", "--stream"):
        with (
            tempfile.TemporaryDirectory() as folder,
            process(place, Path(folder), COUNT, "--chat-mode", "ask", way, **ENDLESS) as running,
        ):
            try:
                next(line for line in running.stdout or () if line.startswith("Repo-map:"))  # it has started
                assert_cancelled(place, lambda: running.send_signal(signal.SIGINT))
                assert "^C" in running.communicate(timeout=30)[0]
            finally:
                running.kill()


if __name__ == "__main__":
    # Otherwise litellm, which is imported when it is first used, asks the maker's host for prices of models.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        run(
            chat=(chat_of_the_command_line, edit_of_the_command_line),
            stream=stream,
            asynchronous="it asks one thing at a time",
            tools="it asks for edits in words",
            structured_output="it asks for edits in words",
            embeddings="it has no embeddings",
            errors=errors,
            retries=retries,
            cancel=cancel,
        )
