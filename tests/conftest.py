"""Rules for all tests."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.support.tiers import scaled

# Read when numpy is imported. Its threads wait by spinning: one for each core, in a worker for each core, they take
# several times what they compute.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A deadline measures the machine, not the code, and an example found by chance fails a run that changed nothing. So
# runs repeat the same examples; `OCTAVO_EXPLORE=1` looks for new ones. The tier says how many examples are tried.
settings.register_profile(
    "octavo",
    deadline=None,
    derandomize="OCTAVO_EXPLORE" not in os.environ,
    max_examples=scaled(),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("octavo")


@pytest.fixture(autouse=True)
def same_log_level() -> Iterator[None]:
    """Commands set the level of the engine's log for their process, which is that of later tests."""
    log = logging.getLogger("octavo_inference")
    level = log.level
    yield
    log.setLevel(level)
