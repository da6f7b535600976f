"""The state of an unfinished run: what it does, the layers that are done, and the hidden states after them.

It lies in `unfinished/` of the target. A layer's shard is complete before the state counts it, so a run that is killed
anywhere repeats one layer at most, with the same result.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from octavo_inference.checkpoints.jsonfile import read_json
from octavo_inference.common.errors import SettingsError
from octavo_inference.tools.quantize.decoder import Floats

FOLDER = "unfinished"
REPORT = "octavo_quantize.json"
_STATE = "state.json"
Json = dict[str, Any]


@dataclass(slots=True)
class State:
    """`identity`: source, settings and text. `done`: number of layers whose shards are complete.

    `kept`: layers and stages that `--keep auto` chose, None before. `hidden`: hidden states by name after these layers.
    """

    identity: Json
    done: int = 0
    seconds: float = 0.0
    kept: list[tuple[int, str]] | None = None
    hidden: dict[str, Floats] = field(default_factory=dict)


@contextmanager
def opened(target: Path, identity: Json) -> Iterator[State]:
    """The state in `target`, which is created if it is not there. Raises `SettingsError` if it holds anything else.

    One process at a time: another one is refused.
    """
    _refuse_others(target)
    folder = target / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"{target}: another process writes it: wait for it, or name another folder", "TARGET"
            ) from None
        yield _read(target, identity)


def _refuse_others(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise SettingsError(f"{target}: is a file: name a folder, or a file that ends in .gguf", "TARGET")
    if (target / REPORT).exists():
        raise SettingsError(f"{target}: holds a finished model: name another folder, or remove it", "TARGET")
    if target.is_dir() and not (target / FOLDER).is_dir() and any(target.iterdir()):
        raise SettingsError(f"{target}: is not empty: name another folder", "TARGET")


def _read(target: Path, identity: Json) -> State:
    path = target / FOLDER / _STATE
    if not path.exists():
        return State(identity)
    found = read_json(path, dict[str, Any], "the state of an unfinished quantization")
    before: Json = found["identity"]
    if before != identity:
        changed = ", ".join(
            f"{name} {before.get(name)!r}, now {identity.get(name)!r}"
            for name in identity
            if before.get(name) != identity.get(name)
        )
        raise SettingsError(
            f"{target}: holds an unfinished quantization with {changed}: give the settings it was started with, or "
            "remove the folder",
            "TARGET",
        )
    kept = found["kept"]
    state = State(identity, found["done"], found["seconds"], None if kept is None else [(a, b) for a, b in kept])
    if state.done:
        with np.load(_hidden(target, state.done)) as arrays:
            state.hidden = {name: arrays[name] for name in arrays.files}
    return state


def save(target: Path, state: State) -> None:
    """Write the state; hidden states of earlier layers are removed."""
    hidden = _hidden(target, state.done)
    if state.done:
        _replace_hidden(hidden, state.hidden)
    described = {"identity": state.identity, "done": state.done, "seconds": state.seconds, "kept": state.kept}
    replace_text(target / FOLDER / _STATE, json.dumps(described))
    for other in (target / FOLDER).glob("hidden-*"):
        if other != hidden:
            other.unlink()


def remove(target: Path) -> None:
    """Remove the state of a finished run."""
    for path in (target / FOLDER).iterdir():
        path.unlink()
    (target / FOLDER).rmdir()


def replace_text(path: Path, text: str) -> None:
    """Write a file at once: it has the old text or the new one."""
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _replace_hidden(path: Path, hidden: Mapping[str, Floats]) -> None:
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **hidden)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _hidden(target: Path, done: int) -> Path:
    return target / FOLDER / f"hidden-{done:05}.npz"
