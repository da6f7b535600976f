"""The last line against files that lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo_inference.common.errors import ModelError


@contextmanager
def refusing(source: object) -> Iterator[None]:
    """What files say is checked where it is used; whatever else can be wrong with it ends in one sentence."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise ModelError(f"{source}: its description cannot be right: {type(error).__name__}: {error}") from error
