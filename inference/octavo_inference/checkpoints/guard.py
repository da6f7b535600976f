"""Turns any parse error of a malformed model file into `ModelError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo_inference.common.errors import ModelError


@contextmanager
def refusing(source: object) -> Iterator[None]:
    """Values are checked where they are used; any other error of a malformed file becomes one sentence here."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise ModelError(f"{source}: invalid model metadata: {type(error).__name__}: {error}") from error
