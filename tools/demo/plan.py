"""`python -m demo.plan`: estimates the duration of `make demo`, before its first long step.

Uses only the standard library, because it runs before `.venv` exists. The figures are from a cold run: seconds of CPU
time on a server core of about 3 GHz, and seconds of waiting that do not depend on the processor.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from images import catalog
from images.produce import unbuilt
from toolbox import ToolError, build
from toolbox.catalog import NODE, cost
from toolbox.progress import Progress, duration

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "inference" / "octavo_inference" / "backends" / "cpu" / "native"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the run that a cache may save: seconds of CPU time, shared by all cores, and seconds of waiting."""

    what: str
    cpu: float
    wait: float

    def seconds(self, cores: int) -> float:
        """The duration in seconds on `cores` otherwise idle cores."""
        return self.cpu / cores + self.wait


def environment() -> Part:
    """The part for `.venv`, if it does not exist."""
    return Part("Python packages", cpu=15, wait=15)


def kernels(variants: Sequence[str]) -> Part:
    """The part for the CPU kernel variants to compile."""
    return Part(_list("CPU kernel variant", "compile", variants), cpu=20 * len(variants), wait=0)


def programs(names: Sequence[str]) -> Part:
    """The part for the Go programs to compile."""
    return Part(_list("Go program", "compile", names), cpu=cost(names), wait=30)


def images(names: Sequence[str]) -> Part:
    """The part for the images to build; the first ones include the base image."""
    return Part(_list("image", "build", names), cpu=30 + 15 * len(names), wait=0)


def _list(what: str, verb: str, names: Sequence[str]) -> str:
    return f"{len(names)} {what}{'s' if len(names) > 1 else ''} to {verb} ({', '.join(names)})"


# Node, chart, model, a load that scales to a second replica, and its end.
STORY = Part("the demonstration itself", cpu=0, wait=100)


def text(parts: Sequence[Part], cores: int) -> str:
    """The text to print; the last part is the one that no cache saves."""
    whole = sum(part.seconds(cores) for part in parts)
    if len(parts) == 1:
        return f"make demo: everything is built; about {duration(whole)}"
    lines = [f"  {duration(part.seconds(cores)):>9}  {part.what}" for part in parts]
    return "\n".join(
        [
            f"make demo: about {max(1, round(whole / 60))} minutes on {cores} cores, this time; later runs take two",
            *lines,
        ]
    )


def parts(*, local: bool, progress: Progress) -> list[Part]:
    """The parts to do on this machine. Raises ToolError if Go is missing or too old."""
    needed = (*NODE, "kubectl", "helm") if local else ("kubectl", "helm")
    made = [environment()] if not (ROOT / ".venv" / ".ready").exists() else []
    if variants := _variants():
        made.append(kernels(variants))
    if names := build.missing(needed, progress):
        made.append(programs(names))
    # Without the model image: it takes two seconds, and its version is unknown before .venv exists.
    if names := unbuilt([name for name in catalog.DEFAULT if name != catalog.MODEL], plain_http_push=local):
        made.append(images(names))
    return [*made, STORY]


def _variants() -> list[str]:
    """Load the module by path: its package is not installed yet."""
    spec = importlib.util.spec_from_file_location("octavo_native_build", NATIVE / "build.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(NATIVE / "build.py")
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    # Without a compiler here an image compiles them with its own.
    with suppress(native.CompilerMissingError):
        return list(native.uncached())
    return list(native.variants())


def main() -> int:
    """Run the command line; 1 if the demo cannot run."""
    parser = argparse.ArgumentParser(prog="demo.plan", description=__doc__)
    parser.add_argument("--cluster", choices=["local", "current"], default="local")
    local = parser.parse_args().cluster == "local"
    try:
        print(text(parts(local=local, progress=Progress()), os.cpu_count() or 1), flush=True)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
