"""Tests across parts use the builders of the parts' own tests."""

from tests.unit.operator.conftest import installation, make_owner

__all__ = ["installation", "make_owner"]
