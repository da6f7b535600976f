"""What the jobs of `all` need of a machine, tried before they are begun: Python packages, a compiler, its headers."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from everything import Job

_CHECKS = ("case", "cases", "checking", "engine")
MODULES = {
    "ahead": ("ahead",),
    "check": _CHECKS,
    # `octavo-server` is a process of its own; uvicorn takes httptools where it is asked to.
    "start": ("parts.start", "octavo_inference.server.lifecycle", "httptools", "jinja2"),
}
"""What a command imports, where it is not its own part."""


def missing(jobs: Iterable[Job], *, compiles: bool) -> dict[str, list[str]]:
    """What is missing here, each with the names of the jobs that cannot be done without it.

    `compiles`: whether kernels run on a card, for which Triton needs a stub of the driver.
    """
    found: dict[str, list[str]] = {}
    reasons: dict[str, str | None] = {}
    stub = without_stub() if compiles else None
    for job in jobs:
        command = job.arguments[0]
        for module in MODULES.get(command, (f"parts.{command}",)):
            if module not in reasons:
                reasons[module] = without(module)
            if (why := reasons[module]) is not None:
                found.setdefault(why, []).append(job.name)
        # `ahead` compiles for a card that need not be there.
        if stub is not None and command != "ahead":
            found.setdefault(stub, []).append(job.name)
    return found


def without(module: str) -> str | None:
    """Why a module cannot be imported; None when it can."""
    try:
        import_module(module)
    except Exception as error:  # noqa: BLE001  a package that is broken ends its import with anything
        return f"{type(error).__name__}: {error}"
    return None


def without_stub() -> str | None:
    """Why Triton could not speak to a card; None when it can, or is not there itself."""
    from octavo_inference.backends.cuda.aot.driver_stub import CompilerMissingError, prepare  # noqa: PLC0415

    try:
        prepare()
    except CompilerMissingError as error:
        return str(error)
    except ImportError:  # told with the modules
        return None
    return None
