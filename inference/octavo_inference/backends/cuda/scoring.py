"""Log-probabilities of prompt tokens on the device: the head over the hidden states of a step, piece by piece.

The buffers of the sampled rows serve every piece, so that a prompt of any length needs no further logits. Pieces follow
the step on the stream; only `collect` waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.buffers import StepLimits, aligned
from octavo_inference.backends.cuda.decoder import Decoder
from octavo_inference.backends.cuda.kernels.logprobs import log_probabilities
from octavo_inference.backends.cuda.kernels.sampler_scratch import ReportScratch, report_shapes, shapes_bytes
from octavo_inference.backends.cuda.staging import Ring
from octavo_inference.core.model_input import PromptScores, ScoredTokens

_FLIGHTS = 4  # steps whose results fit into host memory, as in `sampling`


@dataclass(frozen=True, slots=True)
class Scored:
    """A step's prompt scores on their way to the host: ranks and ids, log-probabilities."""

    integers: Torch
    floats: Torch
    wanted: Sequence[PromptScores]
    vocab: int
    done: torch.cuda.Event | None

    def collect(self) -> list[ScoredTokens]:
        """Wait for the scores, in the order of the step's. The arrays are copies."""
        if self.done is not None:
            self.done.synchronize()
        integers, floats = self.integers.numpy(), self.floats.numpy()
        found, at = [], 0
        for scores in self.wanted:
            end, width = at + scores.length, 1 + min(scores.logprobs, self.vocab)
            ranks, values = integers[at:end], floats[at:end]
            found.append(
                ScoredTokens(
                    values[:, 0].copy(), ranks[:, 0].copy(), ranks[:, 1:width].copy(), values[:, 1:width].copy()
                )
            )
            at = end
        return found


class PromptScorer:
    """Scores up to `limits.tokens` tokens of prompts in a step, with up to `max_logprobs` alternatives each.

    The constructor allocates all device memory, `scorer_bytes`.
    """

    def __init__(self, decoder: Decoder, *, max_logprobs: int) -> None:
        limits, device = decoder.context.limits, decoder.context.buffers.logits.device
        width = aligned(1 + max_logprobs)
        self._decoder = decoder
        self._piece = limits.rows
        self._gpu = device.type == "cuda"
        self._targets = torch.zeros(limits.rows, dtype=torch.int32, device=device)
        self._wanted = torch.zeros(limits.rows, dtype=torch.int32, device=device)
        self._integers = torch.zeros((limits.tokens, width), dtype=torch.int32, device=device)
        self._floats = torch.zeros((limits.tokens, width), dtype=torch.float32, device=device)
        self._scratch = ReportScratch(
            *(
                torch.empty(shape, dtype=dtype, device=device)
                for shape, dtype in report_shapes(limits.rows, limits.vocab, max_logprobs)
            )
        )
        self._rings = [Ring(_FLIGHTS, part.nbytes, device) for part in (self._integers, self._floats)]

    def send(self, wanted: Sequence[PromptScores], *, adapted: bool) -> Scored:
        """Score tokens that follow query tokens of the last step, and start copying the result to the host.

        `adapted`: the step has adapters.
        """
        decoder, at = self._decoder, 0
        for scores in wanted:
            for first in range(0, scores.length, self._piece):
                count = min(self._piece, scores.length - first)
                target = scores.position + 1 + first
                self._targets[:count].copy_(decoder.context.table.tokens[scores.row, target : target + count])
                self._wanted[:count].fill_(scores.logprobs)
                log_probabilities(
                    decoder.read_out(scores.query + first, count, adapted=adapted),
                    self._targets[:count],
                    self._wanted[:count],
                    self._integers[at : at + count],
                    self._floats[at : at + count],
                    self._scratch,
                )
                at += count
        integers_home, floats_home = self._rings
        integers, floats = integers_home.receive(self._integers[:at]), floats_home.receive(self._floats[:at])
        done = None
        if self._gpu:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return Scored(integers, floats, wanted, decoder.context.config.vocab, done)


def scorer_bytes(limits: StepLimits, *, max_logprobs: int) -> int:
    """Device memory of a `PromptScorer` in bytes."""
    scratch = shapes_bytes(report_shapes(limits.rows, limits.vocab, max_logprobs))
    return scratch + 4 * (2 * limits.rows + 2 * limits.tokens * aligned(1 + max_logprobs))
