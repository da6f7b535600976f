"""What is taken along to a machine without a network, and what comes back from it. Standard library only.

wheels/*.whl            packages that the machine may lack         (bench.gpu.pack)
kernels.tar.gz          compiled kernels                           (bench.gpu.pack)
manifest.json           versions that the kernels were compiled by (bench.gpu.pack)
run-N.tar.gz            result files and logs of an earlier call   (bench.gpu.first)
kernels-N.tar.gz        kernels that it had to compile             (bench.gpu.first)
"""

from __future__ import annotations

import importlib.util
import json
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

GROUP = "__grp__"
"""Prefix of Triton's files that list a kernel's files by absolute paths."""


def unpack_wheels(taken: Path, site: Path) -> list[str]:
    """Unpack the wheels whose modules this machine lacks into `site`; their names. Its own packages stay in use."""
    lacking = [wheel for wheel in sorted((taken / "wheels").glob("*.whl")) if not _is_here(modules_of(wheel))]
    for wheel in lacking:
        unpack_wheel(wheel, site)
    return [wheel.name.split("-")[0] for wheel in lacking]


def unpack_wheel(wheel: Path, site: Path) -> None:
    """Unpack a wheel, which is enough for its modules to be imported from `site`."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)  # noqa: S202  our own wheels; zipfile itself keeps paths below `site`


def modules_of(wheel: Path) -> set[str]:
    """The top-level modules and packages of a wheel."""
    with zipfile.ZipFile(wheel) as file:
        tops = {(name.partition("/")[0], "/" in name) for name in file.namelist()}
    packages = {name for name, folder in tops if folder and not name.endswith((".dist-info", ".data"))}
    return packages | {name.partition(".")[0] for name, folder in tops if not folder}


def _is_here(modules: Iterable[str]) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in modules)


def unpack_kernels(archive: Path, cache: Path) -> int:
    """Unpack compiled kernels into a cache of Triton; their number."""
    cache.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as file:
        file.extractall(cache, filter="data")
    relocate(cache)
    return count(cache)


def unpack_results(archive: Path, results: Path) -> None:
    """Unpack an earlier call's result files and logs, unless newer ones are there."""
    with tarfile.open(archive) as file:
        for member in file.getmembers():
            if member.isfile() and not (results / member.name).exists():
                file.extract(member, results, filter="data")


def relocate(cache: Path) -> None:
    """Make the lists of files name this cache, wherever it was filled."""
    for group in cache.glob(f"*/{GROUP}*"):
        listed = json.loads(group.read_text(encoding="utf-8"))["child_paths"]
        paths = {name: str(group.parent / name) for name in listed}
        group.write_text(json.dumps({"child_paths": paths}), encoding="utf-8")


def trim(cache: Path) -> None:
    """Remove from a cache what no launch reads: sources, and locks of writers."""
    for path in [*cache.glob("*/*.source"), *cache.glob("*/*.lock")]:
        path.unlink()


def count(cache: Path) -> int:
    """Number of compiled kernels in a cache."""
    return sum(1 for _ in cache.glob("*/*.cubin"))


def archive(target: Path, folder: Path, names: Iterable[str] | None = None) -> None:
    """Write files and folders below `folder`, by default all, to a compressed archive, atomically."""
    partial = target.with_name(f".{target.name}.partial")
    with tarfile.open(partial, "w:gz", compresslevel=6) as file:
        for name in sorted(path.name for path in folder.iterdir()) if names is None else sorted(names):
            file.add(folder / name, name)
    partial.replace(target)
