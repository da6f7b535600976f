"""The decision log: a file of bounded size whose failure never stops scaling."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import BinaryIO

from octavo_operator.autoscale.decision_record import Recorder
from octavo_operator.autoscale.types import Decision, Observation, PolicyState, ScalingSettings

logger = logging.getLogger(__name__)

# At this size the file is renamed to PATH.1, which replaces the previous one.
LIMIT_BYTES = 64 << 20


class DecisionLog:
    """Appends each decision to `path`. After a disk error it stops, with one error in the operator's log."""

    def __init__(self, path: Path, limit: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit = limit
        self._recorder = Recorder()
        self._file: BinaryIO | None = None
        self._broken = False

    def write(
        self,
        key: str,
        settings: ScalingSettings,
        state: PolicyState,
        observation: Observation,
        now: float,
        decision: Decision,
    ) -> None:
        """Append one decision."""
        if self._broken:
            return
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
            if self._file.tell() >= self._limit:
                self._file.close()
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                self._file = self._path.open("ab", buffering=0)
                self._recorder.forget()
            self._file.write(self._recorder.line(key, settings, state, observation, now, decision))
        except OSError as error:
            self._broken = True
            logger.error("decision log stopped: %s", error)  # noqa: TRY400 - a disk error needs no traceback

    def forget(self, key: str) -> None:
        """Drop the state of a deleted resource."""
        self._recorder.forget(key)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
