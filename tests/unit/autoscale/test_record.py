"""The log of decisions: what is recorded is decided again alike, and what is not is seen."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from tests.unit.autoscale.cluster import Cluster

from octavo_operator.autoscale import decision_record
from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import PolicyState, ScalingSettings
from octavo_operator.autoscaler.decision_log import DecisionLog
from octavo_operator.autoscaler.replay import main


class Recorded(Cluster):
    """A cluster whose operator writes a log."""

    log = None

    def decide(self, settings, state, seen, now):
        decision = decide(settings, state, seen, now)
        self.log.write("models/tiny", settings, state, seen, now, decision)
        return decision


@pytest.fixture
def cluster(tmp_path):
    made = Recorded(ScalingSettings(1, 10, ttft=2.0, tpot=0.05))
    made.log = DecisionLog(tmp_path / "log", limit=1 << 20)
    yield made
    made.log.close()


def test_what_is_recorded_is_decided_again_alike(cluster, tmp_path, capsys):
    for tick in range(120):
        cluster.tick(10.0 + tick / 4)
        if tick == 60:
            cluster.state = PolicyState()  # the operator restarts
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert [number for number, line in enumerate(lines) if decision_record.decode(line).state is not None] == [0, 61]
    assert len({decision_record.decode(line).decision.desired for line in lines}) > 1
    assert main([str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out == "120 decisions, 0 differ\n"


def test_the_first_difference_is_shown(cluster, tmp_path, capsys):
    for _ in range(5):
        cluster.tick(10.0)
    path = tmp_path / "log"
    lines = [decision_record.decode(line) for line in path.read_bytes().splitlines()]
    lines[3] = replace(lines[3], decision=replace(lines[3].decision, desired=7, reason="Magic"))
    path.write_bytes(b"".join(map(decision_record.encode, lines)))
    assert main([str(path)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("5 decisions, 1 differ\nline 4: models/tiny at ")
    assert "desired\n    recorded 7\n    again    1" in told
    assert "message" not in told


@pytest.mark.parametrize(
    ("text", "says"),
    [("{}\n", "line 1 is not a decision"), ("nonsense\n", "line 1 is not a decision")],
    ids=["fields", "json"],
)
def test_a_file_that_is_no_log_is_said(tmp_path, capsys, text, says):
    (tmp_path / "log").write_text(text)
    assert main([str(tmp_path / "log")]) == 2
    assert says in capsys.readouterr().err
    assert main([str(tmp_path / "none")]) == 2


def test_a_log_that_was_cut_says_so(cluster, tmp_path, capsys):
    for _ in range(3):
        cluster.tick(10.0)
    path = tmp_path / "log"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    assert main([str(path)]) == 2
    assert "line 1 (models/tiny) needs the state of a decision that is not in the log" in capsys.readouterr().err


def test_the_log_is_bounded_and_each_part_stands_alone(cluster, tmp_path, capsys):
    cluster.log = DecisionLog(tmp_path / "log", limit=20_000)
    for _ in range(60):
        cluster.tick(20.0)
    parts = [tmp_path / "log", tmp_path / "log.1"]
    assert all(part.stat().st_size < 40_000 for part in parts)
    assert [main([str(part)]) for part in parts] == [0, 0]
    cluster.log.close()


def test_a_disk_that_fails_ends_the_log_and_nothing_else(cluster, tmp_path, caplog):
    cluster.log = DecisionLog(tmp_path / "no" / "such" / "folder")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            cluster.tick(10.0)
    assert [entry.getMessage()[:20] for entry in caplog.records] == ["decision log stopped"]
