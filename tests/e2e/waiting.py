"""Waiting with the patience that a busy node needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from demo import cluster

# Pods of several tests start beside each other, on as few as two processors. Each look starts a kubectl, which takes as
# much of a processor as a pod that serves.
BESIDE = "PYTEST_XDIST_WORKER" in os.environ
PATIENCE, INTERVAL = (3.0, 2.0) if BESIDE else (1.5, 0.5)
T = TypeVar("T")


def patiently(what: str, probe: Callable[[], T], *, timeout: float, interval: float = INTERVAL) -> T:
    """First truthy answer of `probe`; `timeout` is what it takes at most where nothing else runs, in seconds.

    Raises TimeoutError naming `what` and the last answer.
    """
    return cluster.eventually(what, probe, timeout=timeout * PATIENCE, interval=interval)
