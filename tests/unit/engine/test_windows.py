"""Windows free their blocks, and answers are those of a model that keeps all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.models.layer_groups import LayerGroup, PoolLayout

from .echo import make_runner
from .late import LateBackend
from .loads import LIMITS, Load, loads
from .runs import RunningBackend

FULL, WINDOW, CHUNK = LayerGroup((0,)), LayerGroup((1,), window=6), LayerGroup((2,), chunk=8)
MIXED = PoolLayout((FULL, WINDOW, WINDOW), 1)
ALONE = PoolLayout((WINDOW,), 1)

GROUPS = st.builds(
    lambda full, others: PoolLayout((FULL,) * full + others, 1),
    st.integers(0, 1),
    st.lists(
        st.one_of(
            st.builds(lambda n: LayerGroup((1,), window=n), st.integers(1, 21)),
            st.builds(lambda n: LayerGroup((1,), chunk=n), st.integers(1, 21)),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
)


def room(layout: PoolLayout, limits: dict[str, Any], steps: int) -> int:
    """The fewest blocks with which any request of a load can be served."""
    return layout.blocks(31, limits["budget"] * steps, 4)


@settings(max_examples=scaled(120), deadline=None)
@given(load=loads(9), layout=GROUPS, spare=st.integers(0, 30), limits=LIMITS)
def test_answers_are_those_without_windows_that_free(
    load: Load, layout: PoolLayout, spare: int, limits: dict[str, Any]
) -> None:
    load.run(make_runner(blocks=room(layout, limits, 1) + spare, layout=layout, **limits))


@settings(max_examples=scaled(80), deadline=None)
@given(load=loads(9), layout=GROUPS, spare=st.integers(0, 30), limits=LIMITS)
def test_and_with_a_step_in_flight(load: Load, layout: PoolLayout, spare: int, limits: dict[str, Any]) -> None:
    load.run(make_runner(LateBackend(room(layout, limits, 2) + spare, layout=layout), **limits))


@settings(max_examples=scaled(80), deadline=None)
@given(load=loads(12), layout=GROUPS, spare=st.integers(0, 30), limits=LIMITS)
def test_and_in_runs_of_steps(load: Load, layout: PoolLayout, spare: int, limits: dict[str, Any]) -> None:
    load.run(make_runner(RunningBackend(room(layout, limits, 1) + spare, layout=layout), **limits))
