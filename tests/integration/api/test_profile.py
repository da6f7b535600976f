"""Profiles of a server with real weights."""

from __future__ import annotations

import threading

import pytest
from tests.support.waiting import eventually

from .conftest import Running


def test_a_profile_divides_the_time_of_the_steps(server: Running) -> None:
    assert server.admin.post("/v1/octavo/profile", json={"seconds": 0.1}).json()["steps"] == 0, "nothing runs"
    running = threading.Thread(target=lambda: server.chat(max_tokens=600, ignore_eos=True))
    running.start()
    eventually(lambda: server.load()["running"])
    found = server.admin.post("/v1/octavo/profile", json={"seconds": 1}).json()
    running.join()
    assert found["steps"] == found["decoded_tokens"] > 0
    assert found["context_tokens"] > found["decoded_tokens"]
    parts = found["part_seconds"]
    assert set(parts) == {"linears", "attention", "lm_head", "elementwise", "sampling", "experts", "states"}
    assert min(parts.values()) >= 0
    assert parts["linears"] > 0
    assert parts["lm_head"] > 0
    assert sum(parts.values()) + found["other_seconds"] == pytest.approx(found["step_seconds"], abs=1e-4)
    # The first step of the interval may have begun before it.
    assert sum(parts.values()) <= found["step_seconds"] <= found["seconds"] + 0.5
