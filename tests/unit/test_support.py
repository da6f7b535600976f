"""The helpers that all tests rely on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.ports import END, FIRST, HOST, free_port, free_ports
from tests.support.tiers import scaled
from tests.support.waiting import busy, eventually, eventually_async

ROOT = Path(__file__).resolve().parents[2]


def test_the_first_true_answer_is_returned() -> None:
    answers = iter([0, 0, 7, 8])
    assert eventually(lambda: next(answers)) == 7


def test_what_never_comes_true_is_named_with_its_last_answer() -> None:
    pods: list[str] = []
    with pytest.raises(AssertionError, match=r"not within 0 s: .*lambda: pods.*test_support.py:\d+.*answer: \[\]"):
        eventually(lambda: pods, seconds=0)


@pytest.mark.parametrize(("load", "times"), [(0.1, 1.0), (6.0, 3.0), (90.0, 4.0)])
def test_a_busy_machine_is_waited_for_longer(load: float, times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert busy() == times
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with pytest.raises(AssertionError, match=rf"not within {10 * times:g} s"):
        eventually(lambda: False, seconds=10)
    assert 10 * times < now[0] < 10 * times + 1


async def test_answers_may_be_awaited() -> None:
    answers = iter([[], ["pod"]])

    async def listed() -> list[str]:
        return next(answers)

    assert await eventually_async(listed) == ["pod"]
    answers = iter([[]])
    with pytest.raises(AssertionError, match=r"listed.*last answer: \[\]"):
        await eventually_async(listed, seconds=0)


def test_ports_are_handed_out_once_and_can_be_bound() -> None:
    ports = [free_port() for _ in range(5)]
    assert len(set(ports)) == 5
    assert all(FIRST <= port < END for port in ports)
    for port in ports:
        with socket.socket() as listening:
            listening.bind((HOST, port))


def test_ports_in_a_row_leave_out_one_that_is_taken() -> None:
    following = free_port() + 1
    with socket.socket() as taken:
        taken.bind((HOST, following + 1))
        first = free_ports(3)
    assert not first <= following + 1 < first + 3


def test_no_other_process_is_given_the_same_ports() -> None:
    code = "from tests.support.ports import free_port; print(*(free_port() for _ in range(300)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    mine = {free_port() for _ in range(300)}
    assert not mine & {int(port) for port in done.stdout.split()}


@pytest.mark.parametrize(("tier", "number"), [("check", 12), ("test", 60), ("full", 300)])
def test_examples_follow_the_tier(tier: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_TEST_TIER", tier)
    assert scaled(60) == number


def test_an_unknown_tier_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_TEST_TIER", "quick")
    with pytest.raises(ValueError, match="expected one of check, test, full"):
        scaled(60)
