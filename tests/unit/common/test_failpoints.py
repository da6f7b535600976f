"""Faults that the environment asks for: once, at the chosen time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo_common.failpoints import KILLED, Failpoints, InjectedFaultError


def test_a_point_fails_once_at_the_chosen_time() -> None:
    points = Failpoints.from_environment({"OCTAVO_FAILPOINTS": "other:raise@1, engine.step:raise@2"})
    points.hit("engine.step")
    points.hit("unnamed")
    with pytest.raises(InjectedFaultError, match=r"failpoint engine\.step"):
        points.hit("engine.step")
    for _ in range(10):
        points.hit("engine.step")


def test_nothing_fails_without_the_variable() -> None:
    Failpoints.from_environment({}).hit("engine.step")


def test_a_process_ends_as_if_it_were_killed() -> None:
    program = "from octavo_common.failpoints import Failpoints; Failpoints('kube.write:exit@1').hit('kube.write')"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == KILLED


@pytest.mark.parametrize("wrong", ["x", "kube.write:raise", "kube.write:raise@0", "kube.write:sing@1"])
def test_text_of_another_form_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"OCTAVO_FAILPOINTS: .* must be NAME:raise@N or NAME:exit@N"):
        Failpoints(wrong)
