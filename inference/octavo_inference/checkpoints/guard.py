"""Turns any parse error of a malformed model file into `ModelError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo_inference.common.errors import ModelError, UnreadableError


@contextmanager
def refusing(source: object) -> Iterator[None]:
    """Values are checked where they are used; any other error of a malformed file becomes one sentence here.

    Raises `UnreadableError` for files that cannot be read now.
    """
    try:
        yield
    except OSError as error:
        raise UnreadableError(f"{source}: cannot be read: {error.strerror or error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{source}: invalid model metadata: {type(error).__name__}: {error}") from error
