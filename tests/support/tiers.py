"""How much a run of the tests looks for: `OCTAVO_TEST_TIER` is `check`, `test` (the default) or `full`."""

from __future__ import annotations

import os

# Times the number of random examples of `test`.
_SHARES = {"check": 0.2, "test": 1.0, "full": 5.0}
# Hypothesis's own default.
_USUAL_EXAMPLES = 100


def tier() -> str:
    """The tier of this run. Raises ValueError when the environment names another one."""
    found = os.environ.get("OCTAVO_TEST_TIER") or "test"
    if found not in _SHARES:
        raise ValueError(f"OCTAVO_TEST_TIER={found!r}: expected one of {', '.join(_SHARES)}")
    return found


def scaled(number: int = _USUAL_EXAMPLES) -> int:
    """How many random examples a property test tries that tries `number` in `make test`."""
    return max(1, round(number * _SHARES[tier()]))
