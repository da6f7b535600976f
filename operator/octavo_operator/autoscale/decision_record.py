"""Decisions as lines of JSON with all inputs and the outcome, for replay. Pure.

A line contains the previous state only if it does not follow from the preceding line of the same key: at the beginning,
after a restart of the operator, and after a truncation of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import msgspec

from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import Decision, Demand, Observation, PolicyState, ScalingSettings


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decision without its new state, which follows from the inputs."""

    desired: int
    reason: str
    message: str
    inputs: str
    requeue: float
    demand: Demand
    notice: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """One decision about `key` (namespace/name) at Unix time `now`."""

    key: str
    now: float
    settings: ScalingSettings
    observation: Observation
    decision: Outcome
    state: PolicyState | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A recorded decision, in line `number` counted from 1, whose replay gave another outcome."""

    number: int
    line: DecisionLine
    again: Outcome

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that differ."""
        names = (field.name for field in fields(Outcome))
        return tuple(name for name in names if getattr(self.line.decision, name) != getattr(self.again, name))


class Recorder:
    """Encodes decisions as lines, in the order of the decisions."""

    def __init__(self) -> None:
        self._latest: dict[str, PolicyState] = {}

    def line(
        self,
        key: str,
        settings: ScalingSettings,
        state: PolicyState,
        observation: Observation,
        now: float,
        decision: Decision,
    ) -> bytes:
        """One line of JSON with its newline."""
        follows = self._latest.get(key) is state
        self._latest[key] = decision.state
        return encode(DecisionLine(key, now, settings, observation, outcome(decision), None if follows else state))

    def forget(self, key: str | None = None) -> None:
        """Make the next line, of `key` or of every key, contain its state."""
        if key is None:
            self._latest.clear()
        else:
            self._latest.pop(key, None)


def outcome(decision: Decision) -> Outcome:
    """The recorded part of a decision."""
    return Outcome(
        decision.desired,
        decision.reason,
        decision.message,
        decision.inputs,
        decision.requeue,
        decision.demand,
        decision.notice,
    )


def encode(line: DecisionLine) -> bytes:
    """One line of JSON with its newline."""
    return msgspec.json.encode(line) + b"\n"


def decode(data: bytes) -> DecisionLine:
    """Decode a line. Raises `msgspec.MsgspecError`, which names the field, if it is invalid."""
    return msgspec.json.decode(data, type=DecisionLine)


def replay(lines: Iterable[bytes]) -> Iterator[Difference | None]:
    """Repeat every recorded decision; yields None for an equal outcome.

    Raises `ValueError`, which names the line, for an invalid line or one whose previous state is not in the log.
    """
    states: dict[str, PolicyState] = {}
    for number, data in enumerate(lines, 1):
        try:
            line = decode(data)
        except msgspec.MsgspecError as error:
            raise ValueError(f"line {number} is not a decision: {error}") from error
        state = line.state if line.state is not None else states.get(line.key)
        if state is None:
            raise ValueError(f"line {number} ({line.key}) needs the state of a decision that is not in the log")
        again = decide(line.settings, state, line.observation, line.now)
        states[line.key] = again.state
        yield None if outcome(again) == line.decision else Difference(number, line, outcome(again))
