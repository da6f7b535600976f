"""Waiting with the patience that a busy node needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from demo import cluster

# Pods of several tests start beside each other, on as few as two processors.
PATIENCE = 3.0 if "PYTEST_XDIST_WORKER" in os.environ else 1.5
T = TypeVar("T")


def patiently(what: str, probe: Callable[[], T], *, timeout: float, interval: float = 0.5) -> T:
    """First truthy answer of `probe`; `timeout` is what it takes at most where nothing else runs, in seconds.

    Raises TimeoutError naming `what` and the last answer.
    """
    return cluster.eventually(what, probe, timeout=timeout * PATIENCE, interval=interval)
