"""Running totals of speculation."""

from __future__ import annotations

from dataclasses import dataclass, field

POSITIONS = 16
"""Positions of a draft that are counted one by one."""


@dataclass(slots=True)
class SpeculationCounts:
    """Drafts, their tokens and those accepted. `by_position`: how many drafts were accepted beyond each position."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    by_position: list[int] = field(default_factory=lambda: [0] * POSITIONS)

    def add(self, drafted: int, accepted: int) -> None:
        """Add a verification."""
        self.drafts += 1
        self.drafted += drafted
        self.accepted += accepted
        for position in range(min(accepted, POSITIONS)):
            self.by_position[position] += 1
