"""Running totals of speculation."""

from __future__ import annotations

import msgspec

from octavo_protocol.engine_settings import MAX_SPECULATION_TOKENS


class SpeculationTotals(msgspec.Struct, kw_only=True):
    """Verified drafts, their tokens and those accepted; `by_position[i]`: drafts whose token i was accepted.

    `seconds_saved`: what steps without drafts would have taken for the same tokens, less what they took. It is an
    estimate from mean times, and negative where speculation cost more than it gained.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds_saved: float = 0.0
    by_position: list[int] = msgspec.field(default_factory=lambda: [0] * MAX_SPECULATION_TOKENS)

    def add(self, drafted: int, accepted: int) -> None:
        """Add a verification."""
        self.drafts += 1
        self.drafted += drafted
        self.accepted += accepted
        for position in range(accepted):
            self.by_position[position] += 1
