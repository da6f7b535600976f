"""Checks the reports of replicas, and passes them to the replica, the prefix index and the estimators."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.report_check import implausible, implausible_adapters
from octavo_gateway.routing.output_length import OutputLengthEstimator
from octavo_gateway.routing.prefix_index import DeltaError
from octavo_gateway.routing.prompt_features import Prompt
from octavo_gateway.routing.router import Router
from octavo_gateway.routing.step_cost import StepCostEstimator
from octavo_protocol.load import LoadReport
from octavo_protocol.prompt import PromptError, decode_prompt

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ReportIntake:
    """Takes the reports of one model's replicas. `rejected`: number of implausible reports, by kind."""

    router: Router
    lengths: OutputLengthEstimator
    step_costs: StepCostEstimator = field(default_factory=StepCostEstimator)
    rejected: dict[str, int] = field(default_factory=dict)

    def take(self, replica: Replica, report: LoadReport, after: int, replicas: Sequence[Replica], now: float) -> bool:
        """Take a load report with the cache's changes after sequence number `after`; False if it is rejected.

        `replicas`: all replicas of the model.
        """
        if (wrong := implausible(report)) is not None:
            self.discard_report(replica, "load", wrong)
            return False
        if replica.restarted(report.start_time):
            self.router.index.forget(replica.url)
        self.lengths.largest_pool = max(self.lengths.largest_pool, report.blocks_total * report.block_size)
        last, before = replica.report, replica.load.report_ask
        if not replica.reported(report):
            self.reject(replica, "steps", "the sums over its steps have shrunk or are no numbers")
        self._learn_step_costs(replicas, now)
        if last is not None:
            self._learn_lengths(replica, last, report, before)
        self._take_cache(replica, report, after)
        if replica.adapters_differ(report):
            self._take_adapters(replica, report)
        return True

    def take_prompt(self, replica: Replica, prompt: Prompt, header: str) -> None:
        """Take the header of an answer that maps its prompt to blocks."""
        try:
            blocks = decode_prompt(header)
        except PromptError as error:
            self.reject(replica, "prompt", str(error))
        else:
            self.router.learn(replica.url, prompt, blocks)

    def discard_report(self, replica: Replica, kind: str, why: str) -> None:
        """Reject a whole report: until the next plausible one only the gateway's own counts apply to the replica."""
        replica.discard_report()
        self.router.index.forget(replica.url)
        self.reject(replica, kind, why)

    def reject(self, replica: Replica, kind: str, why: str, error: Exception | None = None) -> None:
        """Count an implausible value; logged once for each replica and kind, with the error's traceback."""
        self.rejected[kind] = self.rejected.get(kind, 0) + 1
        if replica.first_of_kind(kind):
            name = replica.endpoint.name
            log.warning("implausible load report of %s, ignored: %s", name, why, exc_info=error)

    def _learn_step_costs(self, replicas: Sequence[Replica], now: float) -> None:
        costs = self.step_costs.learn([each.steps for each in replicas], now)
        for each, cost in zip(replicas, costs, strict=False):
            each.set_step_cost(cost)

    def _learn_lengths(self, replica: Replica, last: LoadReport, report: LoadReport, before: int) -> None:
        """Learn answer lengths from the tokens generated and the requests ended between two reports.

        `before`: number of the earlier report.
        """
        tokens = report.generation_tokens - last.generation_tokens
        # Embeddings have no answer: they would make answers look shorter.
        ended = report.requests - last.requests - (report.pooled_requests - last.pooled_requests)
        there = ended + last.running + last.waiting + report.running
        if self.lengths.generated(tokens, ended, there, report.blocks_total * report.block_size):
            replica.load.grew(tokens / max(1, last.running, report.running), before)
        else:
            why = f"{tokens} tokens generated and {ended} requests ended since its last report"
            self.reject(replica, "output", why)

    def _take_adapters(self, replica: Replica, report: LoadReport) -> None:
        if (wrong := implausible_adapters(report)) is not None:
            self.reject(replica, "adapters", wrong)
        else:
            replica.set_adapters(report)

    def _take_cache(self, replica: Replica, report: LoadReport, after: int) -> None:
        if report.cache is None:
            return
        try:
            self.router.index.reported(replica.url, report.cache, after, report.blocks_total, replica.asked_at)
        except DeltaError as error:
            self.reject(replica, "cache", str(error))
            self.router.index.forget(replica.url)
