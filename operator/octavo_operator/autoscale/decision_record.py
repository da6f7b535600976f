"""Decisions as lines of JSON: all that went in and what came out, so that they can be taken again elsewhere. Pure.

A line carries the state before the decision only where it is not what the line before it, of the same key, has led to:
at the beginning, after a restart of the operator, and where a log was cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import msgspec

from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import Decision, Demand, Observation, PolicyState, ScalingSettings


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decision without the state it leads to: that follows from the inputs."""

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
    """The decision that is recorded in line `number`, counted from 1, and the one taken again; what differs of them."""

    number: int
    line: DecisionLine
    again: Outcome

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of what differs."""
        names = (field.name for field in fields(Outcome))
        return tuple(name for name in names if getattr(self.line.decision, name) != getattr(self.again, name))


class Recorder:
    """Lines of decisions, in the order they are taken."""

    def __init__(self) -> None:
        self._led_to: dict[str, PolicyState] = {}

    def line(
        self,
        key: str,
        settings: ScalingSettings,
        state: PolicyState,
        observation: Observation,
        now: float,
        decision: Decision,
    ) -> bytes:
        """One line, with its end."""
        follows = self._led_to.get(key) is state
        self._led_to[key] = decision.state
        told = DecisionLine(key, now, settings, observation, outcome(decision), None if follows else state)
        return encode(told)

    def forget(self, key: str | None = None) -> None:
        """The next line, of `key` or of all, cannot build on one before it."""
        if key is None:
            self._led_to.clear()
        else:
            self._led_to.pop(key, None)


def outcome(decision: Decision) -> Outcome:
    """What a decision says."""
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
    """One line of JSON, with its end."""
    return msgspec.json.encode(line) + b"\n"


def decode(data: bytes) -> DecisionLine:
    """A line. Raises `msgspec.MsgspecError` naming the field when it is none."""
    return msgspec.json.decode(data, type=DecisionLine)


def replay(lines: Iterable[bytes]) -> Iterator[Difference | None]:
    """Take every recorded decision again; None for each that comes out the same.

    Raises `ValueError` naming the line that is none or builds on one that is not there.
    """
    states: dict[str, PolicyState] = {}
    for number, data in enumerate(lines, 1):
        try:
            line = decode(data)
        except msgspec.MsgspecError as error:
            raise ValueError(f"line {number} is no decision: {error}") from error
        state = line.state if line.state is not None else states.get(line.key)
        if state is None:
            raise ValueError(f"line {number} ({line.key}) builds on a decision that is not in the log")
        again = decide(line.settings, state, line.observation, line.now)
        states[line.key] = again.state
        yield None if outcome(again) == line.decision else Difference(number, line, outcome(again))
