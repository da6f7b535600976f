"""Builds programs once per go.mod, go.sum, our own Go files, Go version, linker flags and architecture."""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolbox import catalog, ready
from toolbox.catalog import PROGRAMS, Program
from toolbox.errors import ToolError
from toolbox.paths import cache_root
from toolbox.progress import Progress, Step

_GO_HELP = "install Go (https://go.dev/dl) and put it on PATH; Debian's golang package may be too old"


@functools.cache
def go_version(folder: Path) -> str:
    """The version of Go that builds the module in `folder`, such as `go1.26.8`.

    Runs `go version` in that folder, where go fetches a newer toolchain if permitted. Raises ToolError if Go is missing
    or older than go.mod requires.
    """
    if shutil.which("go") is None:
        raise ToolError(f"go was not found: {_GO_HELP}")
    run = subprocess.run(["go", "env", "GOVERSION"], check=False, cwd=folder, capture_output=True, text=True)
    if run.returncode or not run.stdout.startswith("go"):
        raise ToolError(f"Go cannot build {folder}: {run.stderr.strip()}; {_GO_HELP}")
    version = run.stdout.strip()
    needed = re.search(r"^go (\S+)", (folder / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
    if needed is not None and _numbers(version) < _numbers(needed[1]):
        raise ToolError(f"{folder / 'go.mod'} needs Go {needed[1]}, found {version}: {_GO_HELP}")
    return version


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


@functools.cache
def go_arch() -> str:
    """The architecture that Go builds for, such as `amd64`."""
    return subprocess.run(["go", "env", "GOARCH"], check=True, capture_output=True, text=True).stdout.strip()


def cache_key(sources: Sequence[bytes], go: str, ldflags: str, arch: str) -> str:
    """16 hex digits of a SHA-256 over all inputs of a build; the parts are length-prefixed, so they cannot merge."""
    digest = hashlib.sha256()
    for part in (go.encode(), ldflags.encode(), arch.encode(), *sources):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def cached(name: str) -> Path:
    """The path of the built program for the current sources, in its own folder; it may not exist yet."""
    made = PROGRAMS[name]
    folder = catalog.TOOLS_FOLDER
    key = cache_key(
        [path.read_bytes() for path in (folder / "go.mod", folder / "go.sum", *made.sources())],
        go_version(folder),
        made.ldflags(),
        go_arch(),
    )
    return cache_root() / "tools" / f"{name}-{key}" / name


def find(name: str, progress: Progress | None = None) -> Path | None:
    """The program if it needs no build: set by the user, built before, or on PATH in the required version.

    `progress` gets a note about a program on PATH with another version. Raises ToolError for an unknown name.
    """
    if name not in PROGRAMS:
        raise ToolError(f"unknown program {name!r}: known are {', '.join(sorted(PROGRAMS))}")
    if (path := ready.named(name)) or (path := cached(name)).is_file():
        return path
    found, reason = ready.on_path(PROGRAMS[name])
    if reason and progress is not None:
        progress.note(reason)
    return found


def missing(names: Iterable[str], progress: Progress | None = None) -> list[str]:
    """The programs that must be built; see `find`."""
    return [name for name in names if find(name, progress) is None]


def program(name: str, progress: Progress | None = None) -> Path:
    """The path of a program such as `kubectl`; builds it if needed. Raises ToolError."""
    return find(name) or ensure([name], progress)[0]


def ensure(names: Iterable[str], progress: Progress | None = None) -> list[Path]:
    """Builds the missing programs in one run of Go, and returns the paths of all. Raises ToolError."""
    wanted = list(names)
    shown = progress or Progress()
    if absent := missing(wanted, shown):
        _build(absent, shown)
    return [find(name) or cached(name) for name in wanted]


@contextmanager
def locked(path: Path, step: Step) -> Iterator[None]:
    """Holds an exclusive file lock, so that two clones do not build the same program; a killed process releases it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        step.detail = "waiting for another build"
        fcntl.flock(handle, fcntl.LOCK_EX)
        step.detail = ""
        yield


def _build(names: Sequence[str], progress: Progress) -> None:
    folder = cache_root() / "tools"
    label = f"{names[0]} {PROGRAMS[names[0]].version()}" if len(names) == 1 else f"{len(names)} programs"
    with progress.step(f"build {label}") as step, locked(folder / "lock", step):
        made = [PROGRAMS[name] for name in names if not cached(name).is_file()]
        if not made:
            step.detail = "built by another process meanwhile"
            return
        # A fixed name, so that the next build removes the remains of a killed one.
        scratch = folder / ".scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            scratch.mkdir()
            _compile(made, scratch, step)
            for each in made:
                target = cached(each.name)
                target.parent.mkdir(exist_ok=True)
                (scratch / each.name).rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _compile(programs: Sequence[Program], out: Path, step: Step) -> None:
    env = {
        # The compiler collects garbage only after using 1 GB: 5 % less CPU time.
        "GOGC": "off",
        "GOMEMLIMIT": "1GiB",
        **os.environ,
        "CGO_ENABLED": "0",
        "GOWORK": "off",
    }
    packages = [program.package for program in programs]
    # Also downloads the needed modules, several at a time.
    total = len(_run_go(["go", "list", "-deps", *packages], env, step, programs).splitlines())
    # -mod=readonly is Go's default: a build never changes go.mod or go.sum.
    command = ["go", "build", "-v", "-trimpath", "-buildvcs=false", "-o", f"{out}/"]
    command += [f"-ldflags={program.package}={program.ldflags()}" for program in programs]
    _run_go([*command, *packages], env, step, programs, total)


def _run_go(
    command: Sequence[str], env: Mapping[str, str], step: Step, programs: Sequence[Program], total: int = 0
) -> str:
    """Runs go and returns its output; `total`: the expected number of packages. Raises ToolError."""
    last: deque[str] = deque(maxlen=40)
    downloaded = compiled = 0
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            command, cwd=catalog.TOOLS_FOLDER, env=env, stdout=output, stderr=subprocess.PIPE, text=True
        ) as go,
    ):
        for line in go.stderr or ():
            if line.startswith("go: downloading "):
                downloaded += 1
                step.detail = f"{downloaded} modules downloaded"
                continue
            last.append(line)
            compiled += 1
            step.detail = f"{compiled} of at most {total} packages compiled"
        if go.wait():
            what = ", ".join(program.name for program in programs)
            raise ToolError(f"building {what} failed (go exited {go.returncode}):\n{''.join(last).rstrip()}")
        output.seek(0)
        return output.read()
