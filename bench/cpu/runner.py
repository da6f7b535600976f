"""A runner: a process that loads a system once and then runs commands, one line each."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from bench.lib.processes import ROOT

MARK = "@bench "


class RunnerError(Exception):
    """A runner ended; the message contains the end of its log."""


@dataclass(slots=True)
class Runner:
    """A running process. `ready` is its first message: seconds to ready, and versions."""

    name: str
    log: Path
    process: subprocess.Popen[str]
    ready: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, name: str, command: list[str], logs: Path, more: Mapping[str, str] | None = None) -> Runner:
        """Start it, with more environment variables, and wait until it is ready. Raises `RunnerError`."""
        log = logs / f"{name}.log"
        with log.open("w") as file:
            # Its Python may be another one, which finds our packages through PYTHONPATH.
            env = (
                os.environ
                | dict(more or {})
                | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
            )
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True, env=env)
        runner = cls(name, log, process)
        runner.ready = runner._read()
        return runner

    def run(self, command: str) -> dict[str, Any]:
        """Run one measurement. Raises `RunnerError`."""
        stdin = _open(self.process.stdin)
        try:
            stdin.write(command + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # its last message may still be unread
        return self._read()

    def close(self) -> None:
        """End the process."""
        _open(self.process.stdin).close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _read(self) -> dict[str, Any]:
        for line in _open(self.process.stdout):
            if line.startswith(MARK):
                message: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return message
        code = self.process.wait()
        last = (self.log.read_text(errors="replace").splitlines() or ["nothing in its log"])[-1]
        raise RunnerError(f"{self.name} ended with code {code}: {last} ({self.log.name})")


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # noqa: S101 (opened as a pipe)
    return pipe


class Runners:
    """Starts runners at first use and keeps them, idle, until the end."""

    def __init__(
        self, commands: dict[str, list[str]], logs: Path, environments: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self._commands = commands
        self._environments = environments or {}
        self._logs = logs
        self._running: dict[str, Runner] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for runner in self._running.values():
            runner.close()

    def get(self, name: str) -> Runner:
        """Return the runner, started if necessary. Raises `RunnerError`."""
        if not self.running(name):
            begin = time.monotonic()
            more = self._environments.get(name)
            self._running[name] = Runner.start(name, self._commands[name], self._logs, more)
            print(f"  started {name} in {time.monotonic() - begin:.1f} s", flush=True)
        return self._running[name]

    def running(self, name: str) -> bool:
        """Whether the runner is started and has not ended."""
        return name in self._running and self._running[name].process.poll() is None

    @property
    def ready(self) -> dict[str, dict[str, Any]]:
        """The first messages of the started runners."""
        return {name: runner.ready for name, runner in self._running.items()}
