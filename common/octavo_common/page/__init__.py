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
"""Where the page reads the `PageState` of a model, `?model=NAME`, with the client's key."""

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


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """One replica. `kv_pool`: the share that live sequences hold, 0 to 1. Without a recent report the load is None."""

    ready: bool
    kv_pool: float | None = None
    running: int | None = None
    waiting: int | None = None


def replica_state(report: LoadReport, *, ready: bool) -> ReplicaState:
    """The state of a replica with this report."""
    share = round(report.kv_occupancy, 2)
    return ReplicaState(ready=ready, kv_pool=share, running=report.running, waiting=report.waiting)


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows of one model.

    `tokens_per_second` and `prefix_hits` (share of prompt tokens, 0 to 1) are rounded means of the last seconds, of all
    clients together; None before they are known. `held`: requests that wait in this gateway process for a replica.
    `settings`: of a server.
    """

    version: str
    ready: bool
    replicas: list[ReplicaState]
    tokens_per_second: int | None = None
    prefix_hits: float | None = None
    generates: bool = True
    gateway: bool = False
    held: int = 0
    settings: dict[str, str] = {}
