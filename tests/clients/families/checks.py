"""Runs the checks of one family in its environment: `python check_FAMILY.py BASE_URL MODEL`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

# The model is small and answers freely: what tests rely on is bounded by types.
CITIES = ("Paris", "Rome", "Oslo")
QUESTION = "What is the temperature in Rome?"
DEGREES = {"Paris": 21, "Rome": 27, "Oslo": 9}


def run(checks: Sequence[Callable[[str, str], None]]) -> None:
    """Call each check with the address and the model; the last line on stdout names the check that failed."""
    base_url, model = sys.argv[1:]
    for check in checks:
        print(check.__name__, flush=True)
        check(base_url, model)
