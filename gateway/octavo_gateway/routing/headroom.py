"""Whether pods have headroom for one more request: KV tokens and sequences, in use and still to come. Pure.

A request takes its prompt now and its output as it grows; a pod that its running requests will fill before they are
done is full. What a pod reports is what its pool really holds (a prefix that many share is held once), so it is the
basis; what was sent since is added, what finished since taken off. What the running ones will still generate is not
held all at once, unless all began together and are equally long: while some grow, others end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, sqrt
from typing import NamedTuple

# Pods are filled up to this share of their pool, so that a wrong guess of the output does not make them preempt.
FILL_SHARE = 0.9
# Standard deviations of what the running requests still generate that are kept free where answers vary.
CHANCE = 0.5
# Requests sent to a pod that has not reported yet: it is not known what it can hold.
BLIND = 4


class PodHeadroom(NamedTuple):
    """One pod. `pool`, `used`, `growth`: KV tokens, there and likely to come; `rows`: sequences, running or waiting.

    `private` of those used are of one sequence alone, as far as is known.

    `pool` None: not known, and `max_rows` says how many it gets until it is. `due`: other gateways fill it, and this
    one has less than its share of what runs there.
    """

    pool: int | None
    used: float
    rows: int
    max_rows: int
    due: bool = False
    growth: float = 0.0
    private: float = 0.0


class AnswerLengths(NamedTuple):
    """How long answers are: `usual` tokens in the mean, `varied` the square of their coefficient of variation.

    The request that is asked for has `output` of them to come.
    """

    output: float = 0.0
    usual: float = 0.0
    varied: float = 0.0


# A pod that never says what it holds: its own queue has to.
ANY = PodHeadroom(None, 0.0, 0, 1)


def largest(pods: Iterable[PodHeadroom]) -> float:
    """The most tokens that any of the pods takes; 0 while none has said."""
    return max((FILL_SHARE * pod.pool for pod in pods if pod.pool is not None), default=0.0)


def fits(
    pods: Sequence[PodHeadroom], prompt: int, answers: AnswerLengths, matched: Sequence[int], most: float
) -> list[bool]:
    """Which pods a request of `prompt` tokens may be sent to now; `matched` of them each has cached.

    `most` is what the `largest` pod takes, of all that there are.
    One that is larger than every pod may go anywhere: the pod's own answer says so, and no request waits behind it. A
    pod where nothing runs always has headroom. Where gateways fill a pod together, each sees a place of its own become
    free at once and those of others only in the next report; one that had none there would never get any, but for
    `due`.
    """
    return [_fits(pod, prompt, answers, cached, most) for pod, cached in zip(pods, matched, strict=True)]


def peak(held: float, private: float, growth: float, rows: int, answers: AnswerLengths) -> float:
    """KV tokens that sequences will likely hold together at most.

    `held` now, `private` of them by one sequence alone, so that they go with it; `growth` still to come in all. Equal
    answers that begin together come to held + growth. Of answers of exponential length, whose `varied` is 1, a share
    exp(-s/usual) is left after s steps, each s tokens longer: their own tokens come to
    rows*usual*exp(private/(rows*usual) - 1) at most, or are at their most now where that is more than `usual` each;
    CHANCE standard deviations of what so few may do otherwise are added. Between both by `varied`: 0.6 in the chats,
    4.6 in the code completions of the Azure traces of 2023. Beyond 1 what is left of those that run is longer than the
    usual answer, since long ones run for longer: (1 + varied)/2 times.
    """
    whole = held + growth
    left = answers.usual * max(1.0, (1.0 + answers.varied) / 2)
    scale = rows * left
    if scale <= 0:
        return whole
    own = min(private, held)
    most = own if own >= scale else scale * exp(own / scale - 1)
    exponential = held - own + most + CHANCE * sqrt(rows) * left
    return whole - min(1.0, answers.varied) * max(0.0, whole - exponential)


def _fits(pod: PodHeadroom, prompt: int, answers: AnswerLengths, cached: int, most: float) -> bool:
    if pod.due or not pod.rows:
        return True
    if pod.rows >= pod.max_rows:
        return False
    if pod.pool is None or prompt + answers.output > most:
        return True
    new = prompt - cached
    likely = peak(pod.used + new, pod.private + new, pod.growth + answers.output, pod.rows + 1, answers)
    return likely <= FILL_SHARE * pod.pool
