"""Several decode steps in one launch: the host works once for all of them.

Between two steps of a run, the device alone appends each token to its sequence. So no sequence of a run has a grammar
or log-probabilities, or is below its `min_tokens`. First tokens are sent at once: none waits for one either. The run
ends with the step in which one of them ends.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from octavo_inference.core.model_input import DecodeRun
from octavo_inference.core.scheduler import Scheduler
from octavo_inference.core.scheduler_output import SchedulerOutput
from octavo_inference.core.sequence import Sequence

# A run's tokens reach the client together. More of them save hardly more of the host's work, and an answer that
# arrives thirty times a second still flows for a reader.
_MOST_STEPS = 8
MOST_SECONDS = 0.03


def plan_run(plan: SchedulerOutput, scheduler: Scheduler, seconds: float, message_fd: int) -> DecodeRun | None:
    """The run that begins with the step of a plan, of at most `seconds`; None if the step stays alone.

    The blocks of all its steps are reserved. Sequences may wait: none of them can start before another one ends.
    """
    sequences = plan.decodes
    alone = len(plan.samples) == len(sequences) and not (plan.chunks or plan.drafts or plan.preempted)
    if not (sequences and alone and all(map(_runs, sequences))):
        return None
    # No sequence reaches its limit before the last step.
    steps = min([_MOST_STEPS, *(sequence.limit - sequence.total for sequence in sequences)])
    if steps > 1:
        steps = scheduler.reserve(sequences, steps)
    if steps <= 1:
        return None
    ends = [sequence.banned for sequence in sequences]
    starts = np.array([0, *accumulate(map(len, ends))], np.int32)
    return DecodeRun(steps, seconds, message_fd, np.concatenate(ends), starts)


def _runs(sequence: Sequence) -> bool:
    return sequence.plain and sequence.total >= sequence.min_total and sequence.total > sequence.prompt_len
