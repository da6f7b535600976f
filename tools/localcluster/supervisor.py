"""Runs components, restarts those that exit, and records their state.

`python -m localcluster.supervisor CONFIG.json` runs a control plane without namespaces.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STATE_FILE = "components.json"
_RESTART_SECONDS = 1.0


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    started: float
    restarts: int = 0


@dataclass(slots=True)
class Supervisor:
    """Components by name, each a command; their output goes to `data/log/NAME.log`."""

    data: Path
    commands: Mapping[str, Sequence[str]]
    _running: dict[str, _Running] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)

    def start(self, name: str, restarts: int = 0) -> None:
        """Starts one component."""
        with (self.data / "log" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(self.commands[name], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._running[name] = _Running(process, time.time(), restarts)
        self._write()

    def reap(self) -> None:
        """Reaps every exited child (as PID 1 also orphans) and schedules the restart of components."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for name, running in self._running.items():
                if running.process.pid == pid:
                    running.process.returncode = os.waitstatus_to_exitcode(status)
                    self._due[name] = max(time.time(), running.started + _RESTART_SECONDS)
                    print(f"{name} exited with {running.process.returncode}", flush=True)

    def restart_due(self) -> None:
        """Starts the components whose restart is due."""
        for name, due in list(self._due.items()):
            if time.time() >= due:
                del self._due[name]
                self.start(name, self._running[name].restarts + 1)

    def kill(self) -> None:
        """Kills all components at once: their data is discarded, so no graceful end is needed."""
        for entry in self._running.values():
            if entry.process.returncode is None:
                entry.process.kill()
                entry.process.wait()

    def _write(self) -> None:
        state = {name: {"started": entry.started, "restarts": entry.restarts} for name, entry in self._running.items()}
        scratch = self.data / f".{STATE_FILE}"
        scratch.write_text(json.dumps(state), encoding="utf-8")
        scratch.replace(self.data / STATE_FILE)


@dataclass(frozen=True, slots=True)
class ComponentState:
    """Start time of a component (Unix time), and its number of restarts."""

    started: float
    restarts: int


def read_state(data: Path) -> dict[str, ComponentState]:
    """The state that the supervisor recorded last; empty before the first component runs."""
    try:
        state = json.loads((data / STATE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {name: ComponentState(**entry) for name, entry in state.items()}


def crash_report(data: Path) -> str | None:
    """The last lines of a component that keeps exiting, or None."""
    for name, entry in read_state(data).items():
        if entry.restarts >= 2:
            return f"{name} keeps exiting; the end of its log:\n{log_tail(data, name)}"
    return None


def log_tail(data: Path, name: str, lines: int = 15) -> str:
    """The last lines of a component's log."""
    try:
        text = (data / "log" / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])


def _main(config_file: Path) -> None:
    config = json.loads(config_file.read_text(encoding="utf-8"))
    data = Path(config["data"])
    # A component dies with its supervisor, even if that is killed.
    prefix = ["setpriv", "--pdeathsig", "KILL", "--"]
    supervisor = Supervisor(data, {name: [*prefix, *command] for name, command in config["commands"].items()})
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    ending: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: ending.append(number))
    for name in supervisor.commands:
        supervisor.start(name)
    # The lifeline is a pipe with its write end in the parent process: end-of-file means that the parent has ended.
    watched = [woken, 0] if config["lifeline"] else [woken]
    while not ending:
        readable, _, _ = select.select(watched, [], [], 0.5)
        if woken in readable:
            os.read(woken, 512)
        if 0 in readable and not os.read(0, 1):
            break
        supervisor.reap()
        supervisor.restart_due()
    supervisor.kill()
    if config["lifeline"]:
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
