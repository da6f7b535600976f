"""Errors people see: a message names the thing, what was found and what to do; HTTP, logs and status show it as is."""

from __future__ import annotations


class OctavoError(Exception):
    """Anything Octavo refuses on purpose."""


class ModelError(OctavoError):
    """A model that cannot be loaded: missing, damaged or of a kind not supported."""


class UnsupportedModelError(ModelError):
    """A model that may be sound, but not of a kind that the native decoder describes."""


class SettingsError(OctavoError):
    """A setting that cannot work; `field` is its name."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class RequestError(OctavoError):
    """A request that can never be served; `field` is the parameter at fault."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class QueueFullError(OctavoError):
    """The waiting queue is at its bound: try again later or elsewhere."""


class DeviceError(OctavoError):
    """A GPU that cannot be used: no driver, too old, too small, taken. The message says what to do."""


class DeviceLostError(DeviceError):
    """The GPU failed while in use, and every call to it fails from now on: only a new process can go on."""


class RankLostError(DeviceLostError):
    """A process of those that share a model is gone, or no longer does what the others do: all have to end."""
