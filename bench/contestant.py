"""A contestant: a process that has loaded a model and waits for commands, one line each."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
MARK = "@bench "


class ContestantError(Exception):
    """A contestant ended; its log says why."""


@dataclass(slots=True)
class Contestant:
    """A running process. `ready` is what it said of itself: seconds to get ready, and versions."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[str]
    ready: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, name: str, command: list[str], logs: Path) -> Contestant:
        """Start it and wait until it is ready. Raises `ContestantError`."""
        log = logs / f"{name}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=os.environ | {"PYTHONPATH": str(HERE)},
            )
        contestant = cls(name, command, log, process)
        contestant.ready = contestant._read()
        return contestant

    def run(self, command: str) -> dict[str, Any]:
        """One measurement. Raises `ContestantError`."""
        try:
            assert self.process.stdin is not None  # noqa: S101 (opened as a pipe above)
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said last is still to be read
        return self._read()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None  # noqa: S101
        self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None  # noqa: S101
        for line in self.process.stdout:
            if line.startswith(MARK):
                message: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return message
        code = self.process.wait()
        last = (self.log.read_text(errors="replace").splitlines() or ["nothing in its log"])[-1]
        raise ContestantError(f"{self.name} ended with code {code}: {last} ({self.log.name})")


class Contestants:
    """Starts contestants when they are first asked for and keeps them, idle, until the end."""

    def __init__(self, commands: dict[str, list[str]], logs: Path) -> None:
        self._commands = commands
        self._logs = logs
        self._running: dict[str, Contestant] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for contestant in self._running.values():
            contestant.close()

    def get(self, name: str) -> Contestant:
        """The contestant, started and warm. Raises `ContestantError`."""
        if name not in self._running or self._running[name].process.poll() is not None:
            begin = time.monotonic()
            self._running[name] = Contestant.start(name, self._commands[name], self._logs)
            print(f"  started {name} in {time.monotonic() - begin:.1f} s", flush=True)
        return self._running[name]

    @property
    def ready(self) -> dict[str, dict[str, Any]]:
        """What those that were started said of themselves."""
        return {name: contestant.ready for name, contestant in self._running.items()}
