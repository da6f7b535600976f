"""Errors for users. A message names the field, the value and the fix; HTTP, logs and status show it unchanged."""

from __future__ import annotations


class OctavoError(Exception):
    """Base of all errors that Octavo raises on purpose."""


class ModelError(OctavoError):
    """A model that cannot be loaded: missing, damaged or unsupported."""


class UnreadableError(ModelError):
    """Files that cannot be read now. The same may succeed later: a network volume has such errors."""


class UnsupportedModelError(ModelError):
    """A valid model that the native decoder does not support."""


class SettingsError(OctavoError):
    """An invalid setting; `field` is its name."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class RequestError(OctavoError):
    """A request that can never be served; `field` is the invalid parameter."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class QueueFullError(OctavoError):
    """The waiting queue is full: `waiting` sequences wait. Retry later or on another replica."""

    def __init__(self, waiting: int, bound: int) -> None:
        super().__init__(f"{waiting} sequences wait already, {bound} may; try again later")
        self.waiting = waiting


class DeviceError(OctavoError):
    """A GPU that cannot be used: no driver, too old, too small, in use. The message has the fix."""


class DeviceLostError(DeviceError):
    """The GPU failed, and all later calls to it fail: only a new process can use it again."""


class RankLostError(DeviceLostError):
    """A tensor-parallel rank ended or got out of step: all ranks must end."""
