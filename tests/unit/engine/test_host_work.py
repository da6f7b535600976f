"""The bench of the host's part of a step runs, and counts what it says it counts."""

from __future__ import annotations

import pytest

from bench.cpu.host_work import measure, measure_prompts, prompt_table, table
from bench.cpu.prefill_chunks import DEVICES
from octavo_simulator.steptime import PodProfile


def test_a_null_device_is_told_as_much_for_long_sequences_as_for_short_ones() -> None:
    found = [measure(3, context, 0.0, 32, overlap=True) for context in (20, 700)]
    assert found[0]["integers_per_step"] == found[1]["integers_per_step"]
    # Seven for each row, one more start than rows, and a block for each row every sixteenth step.
    assert found[0]["integers_per_step"] == round(6 * 3 + 1 + 3 / 16, 1)
    assert len(table(found).splitlines()) == 4


def test_a_device_that_is_waited_for_is_idle_while_the_host_works() -> None:
    alone = measure(8, 20, 0.002, 20, overlap=False)
    assert 0 < alone["idle_share"] < 1
    assert alone["step_ms"] > 2


def test_a_launch_of_several_steps_counts_for_each() -> None:
    found = measure(3, 20, 0.0, 32, overlap=False, runs=True)
    assert found["launches"] == "runs"
    # A run is sent once; on a busy machine, steps may take too long for runs.
    assert (6 * 3 + 1) / 8 < found["integers_per_step"] <= 6 * 3 + 2


@pytest.mark.parametrize("device", [DEVICES[1], DEVICES[4]], ids=lambda device: device.name)
def test_prompts_next_to_answers_take_few_steps_on_a_device_with_a_fixed_cost(device: PodProfile) -> None:
    found = measure_prompts(device, 8, 600, 3)
    assert 1 <= found["steps"][-1] <= 30
    assert len(prompt_table([found]).splitlines()) == 3
