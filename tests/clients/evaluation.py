"""Tasks of lm-eval that need no data sets from elsewhere, and its command line for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from tests.clients.families.checks import Place

# What any model knows that was trained at all: a shift of the log-probabilities by one token would change the answers.
QUESTIONS = (
    ("The capital of France is", ("Paris", "purple", "seventeen")),
    ("One, two, three, four,", ("five", "banana", "king")),
    ("The opposite of black is", ("white", "running", "Tuesday")),
    ("At night it is dark, and during the day the sun is", ("shining", "sleeping in a spoon", "of the")),
)
TEXT = "It was a cold day in winter, and the children went out to play in the snow until it was dark."
PROMPTS = ("Once upon a time", "The weather in Rome is", "My favourite food is", "She opened the door and")
OUT = 12


def write_tasks(folder: Path, place: Place, *, chat: bool) -> list[str]:
    """Write the tasks of a model type; their names. The targets of generation are what the server says itself."""
    generation = {
        "output_type": "generate_until",
        "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": OUT, "temperature": 0},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    rows = [{"text": prompt, "target": said(place, prompt, chat=chat)} for prompt in PROMPTS]
    _write(folder, "generation", rows, generation, "{{text}}", "target")
    if chat:
        return ["generation"]
    choice = {
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    rows = [{"text": question, "choices": choices, "target": 0} for question, choices in QUESTIONS]
    _write(folder, "choice", rows, choice, "{{text}}", "target")
    rolling = {"output_type": "loglikelihood_rolling", "metric_list": [{"metric": "byte_perplexity"}]}
    _write(folder, "rolling", [{"text": TEXT}], rolling, "", "{{text}}")
    return ["choice", "rolling", "generation"]


def _write(folder: Path, name: str, rows: Sequence[Any], fields: dict[str, Any], text: str, target: str) -> None:
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": text,
        "doc_to_target": target,
        "metadata": {"version": 1},
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task | fields))


def said(place: Place, prompt: str, *, chat: bool) -> str:
    """The greedy answer of a place, asked without a client."""
    own = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    body = {"model": place.model, "max_tokens": OUT, "temperature": 0} | own
    url = f"{place.base_url}/{'chat/' * chat}completions"
    response = httpx.post(url, json=body, headers={"Authorization": f"Bearer {place.key}"}, timeout=60)
    choice = response.raise_for_status().json()["choices"][0]
    return str(choice["message"]["content"] if chat else choice["text"])


def arguments(place: Place, folder: Path, tasks: Sequence[str], kind: str, **more: object) -> list[str]:
    """The arguments of `lm_eval`. It reads the key from OPENAI_API_KEY."""
    path = "chat/completions" if kind == "local-chat-completions" else "completions"
    given = {"model": place.model, "base_url": f"{place.base_url}/{path}", "num_concurrent": 3, "max_retries": 1} | more
    options = {
        "--model": kind,
        "--model_args": ",".join(f"{name}={value}" for name, value in given.items()),
        "--tasks": ",".join(tasks),
        "--include_path": str(folder),
        "--output_path": str(folder / "results"),
    }
    chat = ["--apply_chat_template"] if kind == "local-chat-completions" else []
    return ["run", *(part for pair in options.items() for part in pair), "--log_samples", *chat]


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """What a run has found, by task."""
    [path] = (folder / "results").rglob("results_*.json")
    found: dict[str, dict[str, Any]] = json.loads(path.read_text())["results"]
    return found
