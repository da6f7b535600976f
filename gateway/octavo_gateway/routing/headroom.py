"""Decides whether pods have headroom for one more request: KV tokens and sequences, in use and still to come. Pure.

A request takes KV tokens for its prompt at once and for its output as it grows. A pod counts as full if its running
requests will fill it before they finish. The pod's report is the basis: it counts the tokens that the pool really
holds, where a shared prefix is held once. Requests sent since are added, requests finished since are subtracted. The
output still to be generated is not held all at once: while some requests grow, others end. The exception is requests
that began together and are equally long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, sqrt
from typing import NamedTuple

# Pods are filled up to this share of their pool, so that a wrong estimate of the output does not cause preemption.
FILL_SHARE = 0.9
# Margin kept free where answer lengths vary: standard deviations of the output still to be generated.
CHANCE = 0.5
# Requests sent to a pod that has not reported yet: its capacity is unknown.
BLIND = 4


class PodHeadroom(NamedTuple):
    """Capacity and use of one pod. `rows`: sequences that run or wait.

    `pool`, `used`, `growth`: KV tokens in all, in use, and likely to be added. `private`: used tokens that belong to
    one sequence alone, as far as is known.

    `pool` is None while unknown; until then the pod gets at most `max_rows` requests. `due`: other gateways fill the
    pod, and this one has less than its share of the running requests.
    """

    pool: int | None
    used: float
    rows: int
    max_rows: int
    due: bool = False
    growth: float = 0.0
    private: float = 0.0


class AnswerLengths(NamedTuple):
    """Answer lengths: `usual` is their mean in tokens, `varied` the square of their coefficient of variation.

    `output`: tokens still expected of the request in question.
    """

    output: float = 0.0
    usual: float = 0.0
    varied: float = 0.0


# A pod that never reports its capacity: its own queue has to limit the requests.
ANY = PodHeadroom(None, 0.0, 0, 1)


def largest(pods: Iterable[PodHeadroom]) -> float:
    """The most tokens that any of the pods accepts; 0 while none has reported."""
    return max((FILL_SHARE * pod.pool for pod in pods if pod.pool is not None), default=0.0)


def fits(
    pods: Sequence[PodHeadroom], prompt: int, answers: AnswerLengths, matched: Sequence[int], most: float
) -> list[bool]:
    """Whether each pod has headroom for a request of `prompt` tokens, of which it has `matched` tokens cached.

    `most`: `largest` of all pods. A request larger than that may go to any pod: the pod refuses it, and no request
    waits behind it. A pod without running requests always has headroom.

    `due` gives this gateway its share of a pod that several gateways fill. Each gateway knows at once when its own
    requests end, but learns from the next report when those of others end. Without `due`, a gateway that has no
    request at the pod would never get one there.
    """
    return [_fits(pod, prompt, answers, cached, most) for pod, cached in zip(pods, matched, strict=True)]


def peak(held: float, private: float, growth: float, rows: int, answers: AnswerLengths) -> float:
    """KV tokens that the sequences will likely hold together at their peak.

    `held`: tokens held now. `private`: the part of them that one sequence alone holds and frees when it ends.
    `growth`: all tokens still to come.

    Equal answers that begin together peak at held + growth. Of answers with exponential lengths, whose `varied` is 1, a
    share exp(-s/usual) is left after s steps, each s tokens longer. Their own tokens peak at
    rows*usual*exp(private/(rows*usual) - 1); where they already exceed `usual` each, the peak is now. CHANCE standard
    deviations are added for the randomness of so few sequences.

    The result is interpolated between both cases by `varied`: 0.6 in the chats, 4.6 in the code completions of the
    Azure traces of 2023. Above 1 the remaining output of running requests is (1 + varied)/2 times the usual answer,
    because long answers run for longer.
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
