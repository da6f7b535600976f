"""The images, their inputs, and the tag computed from these."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
_SHARED = ("Dockerfile", ".dockerignore", "LICENSE", "pyproject.toml", "requirements/build.txt", "protocol", "common")
_SOURCE_SUFFIXES = {".py", ".typed", ".cpp", ".hpp", ".h", ".c"}


@dataclass(frozen=True, slots=True)
class Target:
    """An image, made from target `stage` of the Dockerfile; `inputs`: what it copies in addition to the shared ones.

    `native`: it compiles kernels, so its tag also depends on the builder image. `arguments`: build arguments.
    """

    name: str
    stage: str
    inputs: tuple[str, ...]
    native: bool = False
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def image(self) -> str:
        """The image's name."""
        return f"octavo-{self.name}"


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("operator", "operator", ("requirements/operator.txt", "operator")),
        Target("gateway", "gateway", ("requirements/gateway.txt", "gateway")),
        Target("server-cpu", "server-cpu", ("requirements/cpu.txt", "inference"), native=True),
        Target("server", "server", ("requirements/server.txt", "inference"), native=True),
        Target(
            "server-cuda12",
            "server",
            ("requirements/server-cuda12.txt", "inference"),
            native=True,
            arguments=(("CUDA", "12"),),
        ),
    )
}
MODEL = "models/smollm2"
# The images for the demo; a `server` with torch takes minutes and gigabytes.
DEFAULT = ("operator", "gateway", "server-cpu", MODEL)
NAMES = (*TARGETS, MODEL)
# For an installation. Nodes have one generation of drivers, so nearly all need one image with torch.
ALL = tuple(name for name in NAMES if name != "server-cuda12")


def version(root: Path = REPOSITORY_ROOT) -> str:
    """The project's version, from pyproject.toml."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])


def tag(target: Target, base: str, builder: str, root: Path = REPOSITORY_ROOT) -> str:
    """Twelve hex digits, a hash of all inputs of the image: same content, same tag."""
    images = [base, builder] if target.native else [base]
    files = ((path.relative_to(root).as_posix(), path.read_bytes()) for path in sources(target, root))
    return digest([(name, b"") for name in (target.name, *images)], files)


def sources(target: Target, root: Path = REPOSITORY_ROOT) -> Iterator[Path]:
    """The source files of the target in a fixed order, without files that tools generate."""
    for name in sorted({*_SHARED, *target.inputs}):
        path = root / name
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix in _SOURCE_SUFFIXES)
        else:
            yield path


def digest(*parts: Iterable[tuple[str, bytes]]) -> str:
    """Twelve hex digits, a hash of named contents; lengths are included, so that neighbours cannot merge."""
    state = hashlib.sha256()
    for part in parts:
        for name, content in part:
            for piece in (name.encode(), content):
                state.update(len(piece).to_bytes(8, "big") + piece)
    return state.hexdigest()[:12]
