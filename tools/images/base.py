"""The base image: a public one if a registry is reachable, else one built from Debian packages."""

from __future__ import annotations

import platform
import re
import shutil
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from images.builders import Builder
from images.catalog import digest
from images.errors import ImageError
from images.process import run
from toolbox.progress import Progress

PUBLIC = "python:3.12-slim"
_PUBLIC_REGISTRY = "https://registry-1.docker.io/v2/"
_PROBE_SECONDS = 3.0
_RUNTIME_PACKAGES = ("ca-certificates", "libstdc++6", "python3", "python3-venv")
_BUILDER_PACKAGES = (*_RUNTIME_PACKAGES, "g++", "python3-dev")
# Part of the cache key: increment it when the build of the base image changes.
_RECIPE = "1"
_CLEAN = (
    'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/* "$1"/etc/resolv.conf "$1"/etc/hostname'
    ' "$1"/etc/hosts "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*'
)
_DOCKERFILE = """\
FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
"""


@dataclass(frozen=True, slots=True)
class Base:
    """References of the two base images; `packages`: the Debian packages of those that are built here."""

    runtime: str
    builder: str
    packages: Mapping[str, tuple[str, ...]]


def choose(builder: Builder, env: Mapping[str, str], reachable: Callable[[], bool] | None = None) -> Base:
    """$BASE_IMAGE, else the public image if it is local or a registry is reachable, else one built on this machine.

    Raises ImageError if none of them is possible.
    """
    if own := env.get("BASE_IMAGE"):
        return Base(own, env.get("BUILDER_IMAGE") or own, {})
    if builder.has(PUBLIC) or (reachable or _registry_answers)():
        return Base(PUBLIC, PUBLIC, {})
    if shutil.which("mmdebstrap") is None:
        raise ImageError(
            f"no image registry responds within {_PROBE_SECONDS:.0f} s and mmdebstrap was not found: "
            "apt-get install mmdebstrap, or set BASE_IMAGE to an image this machine has (python3 >= 3.11 with venv)"
        )
    sources = "".join(path.read_text(encoding="utf-8") for path in apt_sources(_codename()))
    made = {}
    for name, packages in (("octavo-base", _RUNTIME_PACKAGES), ("octavo-builder", _BUILDER_PACKAGES)):
        words = (_RECIPE, platform.machine(), _codename(), sources, *packages)
        made[f"localhost/{name}:{digest([(word, b'') for word in words])}"] = packages
    runtime, compiler = made
    return Base(runtime, compiler, made)


def ensure(base: Base, reference: str, builder: Builder, progress: Progress) -> None:
    """Builds the base image from Debian packages if it is one of ours and missing."""
    packages = base.packages.get(reference)
    if packages is None or builder.has(reference):
        return
    with (
        progress.step(f"{reference.split('/')[1]} from Debian packages") as step,
        tempfile.TemporaryDirectory() as folder,
    ):
        context = Path(folder)
        command = ["mmdebstrap", "--variant=essential", "--format=tar", f"--include={','.join(packages)}"]
        command += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "locale", "doc", "info")]
        command += ["--dpkgopt=path-include=/usr/share/doc/*/copyright", '--aptopt=Acquire::Languages "none"']
        command += [f"--customize-hook={_CLEAN}", _codename(), str(context / "rootfs.tar")]
        run([*command, *apt_sources(_codename())], step)
        (context / "Dockerfile").write_text(_DOCKERFILE, encoding="utf-8")
        builder.build(context, reference, step)


def apt_sources(codename: str, folder: Path = Path("/etc/apt")) -> list[Path]:
    """The host's apt source files for the distribution itself. Raises ImageError if there is none."""
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    files = [path for path in files if path.is_file() and path.suffix in {".list", ".sources"}]
    chosen = [path for path in files if _offers(path.read_text(encoding="utf-8").splitlines(), codename)]
    if not chosen:
        raise ImageError(
            f"no file in {folder} offers {codename} main: set BASE_IMAGE to an image with python3 >= 3.11 and venv"
        )
    return chosen


def _offers(lines: Iterable[str], codename: str) -> bool:
    words = [line.split() for line in lines if not line.lstrip().startswith("#")]
    one_line = any(parts[:1] == ["deb"] and codename in parts and "main" in parts for parts in words)
    suites = any(parts[:1] == ["Suites:"] and codename in parts for parts in words)
    return one_line or (suites and any(parts[:1] == ["Components:"] and "main" in parts for parts in words))


def _codename() -> str:
    found = re.search(r'^VERSION_CODENAME="?(\w+)', Path("/etc/os-release").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None or not Path("/etc/apt").is_dir():
        raise ImageError(
            "no image registry responds, and a base image can only be built on Debian or Ubuntu: "
            "set BASE_IMAGE to an image this machine has (python3 >= 3.11 with venv)"
        )
    return found[1]


def _registry_answers() -> bool:
    try:
        context = ssl.create_default_context()
        with urllib.request.urlopen(_PUBLIC_REGISTRY, timeout=_PROBE_SECONDS, context=context):
            return True
    except urllib.error.HTTPError as error:
        # A registry responds with 401 (token required); any other status is from a proxy in between.
        return error.code == 401
    except OSError:
        return False
