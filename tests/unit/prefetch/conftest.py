"""The fake hub as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.prefetch.fake_hub import FakeHub


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    fake = FakeHub()
    yield fake
    fake.close()
