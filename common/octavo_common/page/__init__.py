"""The page at `/` of a server and of a gateway: its files, their headers, and the state that it reads.

The files need no key: a browser sends none with a page, and they contain nothing about the models. Everything else that
the page shows comes from endpoints that ask for a key, if there are keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from octavo_protocol.load import LoadReport

PATH_STATE: Final = "/page/state"
"""Where the page reads a `PageState`, with the client's key."""

HEADERS: Final = {
    # Nothing from other hosts, and no script or style within the page.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Headers of each file."""


class PageFile(msgspec.Struct, frozen=True):
    """A file of the page."""

    path: str
    media_type: str
    name: str

    def read(self) -> bytes:
        """Its content."""
        return (Path(__file__).parent / self.name).read_bytes()


FILES: Final = (
    PageFile("/", "text/html", "page.html"),
    PageFile("/page/page.css", "text/css", "page.css"),
    PageFile("/page/page.js", "text/javascript", "page.js"),
)


class ReplicaState(msgspec.Struct, frozen=True):
    """The load of one replica. Shares are from 0 to 1; tokens are counted since its start."""

    ready: bool
    kv_pool: float
    running: int
    waiting: int
    generated_tokens: int
    prompt_tokens: int
    prefix_hit_tokens: int


class ModelState(msgspec.Struct, frozen=True):
    """One model. `names`: those that clients use. `held`: requests that wait in the gateway for a replica."""

    names: list[str]
    ready: bool
    replicas: list[ReplicaState]
    generates: bool = True
    held: int = 0


class PageState(msgspec.Struct, frozen=True):
    """What the page shows. `settings`: of a server."""

    version: str
    models: list[ModelState]
    settings: dict[str, str] = {}
    gateway: bool = False


def replica_state(report: LoadReport, *, ready: bool) -> ReplicaState:
    """The state of a replica with this report."""
    return ReplicaState(
        ready,
        report.kv_occupancy,
        report.running,
        report.waiting,
        report.generation_tokens,
        report.prompt_tokens,
        report.prefix_hit_tokens,
    )
