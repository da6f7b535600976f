"""The fake hub and the fake bucket as fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.unit.prefetch.fake_bucket import FakeBucket
from tests.unit.prefetch.fake_hub import FakeHub


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    fake = FakeHub()
    yield fake
    fake.close()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBucket]:
    fake = FakeBucket()
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", fake.url)
    monkeypatch.setenv("GOOGLE_BASE_URL", fake.url)
    yield fake
    fake.close()
