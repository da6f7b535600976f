"""Builds a tool once per content of go.mod, go.sum, Go version, linker flags and architecture."""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from toolbox.catalog import OWNER, TOOLS, Tool
from toolbox.paths import cache_root
from toolbox.progress import Progress, Step

_GO_HELP = "install Go (https://go.dev/dl) and put it on PATH; Debian's golang package may be too old"


class ToolError(Exception):
    """A program cannot be built or found; the message says what to do."""


@functools.cache
def go_version(folder: Path) -> str:
    """The version of Go that builds the module in `folder`, such as `go1.26.8`.

    Asked there, because go itself then fetches a newer toolchain if it may; raises ToolError where Go is missing or
    stays older than go.mod asks for.
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
    """What a build depends on, as 16 hex digits of a SHA-256; every part is length-prefixed so that none can shift."""
    digest = hashlib.sha256()
    for part in (go.encode(), ldflags.encode(), arch.encode(), *sources):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def bin_folder(tool: Tool) -> Path:
    """Where the tool's programs are, or will be, for the go.mod, go.sum and Go files at hand."""
    key = cache_key(
        [path.read_bytes() for path in sorted(tool.folder.iterdir()) if path.suffix in {".go", ".mod", ".sum"}],
        go_version(tool.folder),
        tool.ldflags(),
        go_arch(),
    )
    return cache_root() / "tools" / f"{tool.name}-{key}" / "bin"


def ready_binary(name: str, env: Mapping[str, str] = os.environ) -> Path | None:
    """The program in $OCTAVO_KUBERNETES_BIN, where that is set and has it.

    Raises ToolError for a Kubernetes program that the folder lacks: mixing versions silently helps nobody.
    """
    folder = env.get("OCTAVO_KUBERNETES_BIN")
    if not folder or name not in OWNER:
        return None
    path = Path(folder).resolve() / name
    if os.access(path, os.X_OK):
        return path
    if OWNER[name].name == "kubernetes":
        raise ToolError(f"OCTAVO_KUBERNETES_BIN={folder} has no program {name}: add it there or unset the variable")
    return None


def program(name: str, progress: Progress | None = None) -> Path:
    """The path of a program such as `kubectl`, built first if need be; raises ToolError."""
    if name not in OWNER:
        raise ToolError(f"unknown program {name!r}: known are {', '.join(sorted(OWNER))}")
    if ready := ready_binary(name):
        return ready
    tool = OWNER[name]
    ensure([tool.name], progress)
    return bin_folder(tool) / name


def ensure(names: Iterable[str], progress: Progress | None = None) -> list[Path]:
    """Builds the named tools that are not in the cache, two at a time, and returns their bin folders; ToolError."""
    tools = [TOOLS[name] for name in names]
    missing = [tool for tool in tools if not bin_folder(tool).is_dir()]
    if missing:
        shown = progress or Progress()
        # Two: one tool's download and link steps use a single core or none while the other compiles.
        with ThreadPoolExecutor(max_workers=2) as pool:
            for result in [pool.submit(_build, tool, shown) for tool in missing]:
                result.result()
    return [bin_folder(tool) for tool in tools]


@contextmanager
def locked(path: Path, step: Step) -> Iterator[None]:
    """Holds an exclusive file lock: two clones do not build the same thing at once, and a killed one leaves no lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        step.detail = "waiting for another build"
        fcntl.flock(handle, fcntl.LOCK_EX)
        step.detail = ""
        yield


def _build(tool: Tool, progress: Progress) -> None:
    target = bin_folder(tool).parent
    with progress.step(f"build {tool.name} {tool.version()}") as step, locked(target.with_suffix(".lock"), step):
        if target.is_dir():
            step.detail = "built by another process meanwhile"
            return
        # One name, so that the next build removes what a killed one left.
        scratch = target.with_name(f".{target.name}")
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            (scratch / "bin").mkdir(parents=True)
            _compile(tool, scratch / "bin", step)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _compile(tool: Tool, out: Path, step: Step) -> None:
    # -mod=readonly is Go's default: a build never changes go.mod or go.sum.
    env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    command = ["go", "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", tool.ldflags(), "-o"]
    # go names a program after its package's folder; etcd's has another name and is built on its own.
    same = {name: package for name, package in tool.programs.items() if package.endswith(f"/{name}")}
    if same:
        _run_go([*command, f"{out}/", *same.values()], tool, env, step)
    for name, package in tool.programs.items():
        if name not in same:
            _run_go([*command, str(out / name), package], tool, env, step)


def _run_go(arguments: list[str], tool: Tool, env: dict[str, str], step: Step) -> None:
    last: deque[str] = deque(maxlen=40)
    downloaded = compiled = 0
    with subprocess.Popen(
        arguments, cwd=tool.folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as go:
        for line in go.stderr or ():
            if line.startswith("go: downloading "):
                downloaded += 1
                step.detail = f"{downloaded} modules downloaded"
                continue
            last.append(line)
            compiled += 1
            step.detail = f"{compiled} packages compiled"
    if go.returncode:
        raise ToolError(f"building tools/{tool.name} failed (go exited {go.returncode}):\n{''.join(last).rstrip()}")
