"""Rules for all property tests."""

import os

from hypothesis import HealthCheck, settings
from tests.support.tiers import scaled

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
