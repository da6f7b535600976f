"""Moves the KV and the states of preempted sequences to the host and back."""

from __future__ import annotations

import logging

from octavo_common.failpoints import Failpoints
from octavo_inference.common.errors import DeviceLostError
from octavo_inference.core.backend import Backend
from octavo_inference.core.scheduler import Scheduler
from octavo_inference.core.scheduler_output import SchedulerOutput

log = logging.getLogger(__name__)


def swap_out(plan: SchedulerOutput, backend: Backend, scheduler: Scheduler, failpoints: Failpoints) -> None:
    """Copy preempted sequences to the host. A sequence whose copy fails is recomputed."""
    for sequence, blocks, row in plan.swap_out:
        try:
            failpoints.hit("swap.out")
            sequence.host = backend.to_host(blocks)
            if backend.state_slots:
                sequence.host_state = backend.states_to_host([row])
        except DeviceLostError:
            raise
        except Exception:
            log.exception("a preempted sequence could not be kept; it is computed again")
            scheduler.drop_host(sequence)


def swap_in(plan: SchedulerOutput, backend: Backend, scheduler: Scheduler, failpoints: Failpoints) -> None:
    """Copy sequences that run again to their new blocks."""
    for sequence, first, blocks in plan.swap_in:
        failpoints.hit("swap.in")
        if blocks and sequence.host is not None:
            backend.from_host(sequence.host[first : first + len(blocks)], blocks)
        # Otherwise it continues from a snapshot further on.
        if sequence.host_state is not None and sequence.computed == sequence.swapped_tokens:
            backend.states_from_host(sequence.host_state, [sequence.row])
        scheduler.drop_host(sequence)
