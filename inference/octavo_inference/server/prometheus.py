"""Renders the metrics in Prometheus' text format.

Every metric has an `octavo:` name. Metrics common to other servers also have the `vllm:` alias that autoscalers and
benchmarks read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo_inference.core.speculation.counts import SpeculationTotals
from octavo_inference.server.goodput import efficiency, factors, waste
from octavo_inference.server.service import Service
from octavo_protocol.adapters import AdapterState
from octavo_protocol.load import ExpertLoad, LoadReport

PREFIXES = ("octavo:", "vllm:")


class _ServerCollector(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service
        self._model = service.names[0]

    def collect(self) -> Iterator[Metric]:
        for prefix in PREFIXES:
            yield from self._served(prefix)
            report = self._service.report()
            if report is not None:
                yield from self._engine(prefix, report)
        yield from self._memory()
        stored = self._service.responses
        yield self._gauge("response_store_entries", "Responses kept for later requests", len(stored))
        yield self._gauge("response_store_bytes", "Memory counted for them", stored.bytes)
        yield from self._grammar_metrics()
        settings = self._service.settings()
        if settings:
            info = GaugeMetricFamily("octavo:engine_info", "Settings in effect, as labels", labels=list(settings))
            info.add_metric(list(settings.values()), 1)
            yield info

    def _served(self, prefix: str) -> Iterator[Metric]:
        m = self._service.metrics
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of admitted requests", m.prompt_tokens),
            ("generation_tokens", "Generated tokens", m.generation_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", m.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", m.cached_tokens),
        ):
            yield self._counter(prefix + name, text, value)
        for name, text, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token of a sequence", m.first_token),
            ("inter_token_latency_seconds", "Between two tokens of a sequence", m.inter_token),
            ("e2e_request_latency_seconds", "From arrival to the last token of a sequence", m.request),
            ("request_queue_time_seconds", "From arrival to the first step of a sequence", m.queue),
            ("request_prefill_time_seconds", "From the first step to the first token of a sequence", m.prefill),
            ("request_decode_time_seconds", "From the first to the last token of a sequence", m.decode),
            ("request_inference_time_seconds", "From the first step to the last token of a sequence", m.inference),
            ("request_time_per_output_token_seconds", "Mean time of a sequence's tokens after the first", m.token_mean),
            ("request_prompt_tokens", "Tokens of a prompt", m.request_prompt_tokens),
            ("request_generation_tokens", "Generated tokens of a sequence", m.request_generation_tokens),
            ("request_params_max_tokens", "max_tokens of a request", m.request_max_tokens),
            ("request_params_n", "n of a request", m.request_choices),
            ("iteration_tokens_total", "Tokens computed in a step", m.step_tokens),
        ):
            family = HistogramMetricFamily(prefix + name, text, labels=["model_name"])
            buckets, total = histogram.cumulative()
            family.add_metric([self._model], buckets, total)
            yield family
        success = CounterMetricFamily(
            f"{prefix}request_success", "Finished sequences", labels=["model_name", "finished_reason"]
        )
        for reason, count in m.finished.items():
            success.add_metric([self._model, reason], count)
        yield success
        rejections = CounterMetricFamily(
            f"{prefix}admission_rejections", "Requests refused with 503", labels=["model_name", "reason"]
        )
        for reason, count in m.rejected.items():
            rejections.add_metric([self._model, reason], count)
        yield rejections
        if prefix == "octavo:":
            text = "Answers with a tool call that did not parse and stayed text"
            yield self._counter("octavo:tool_parse_failures", text, m.tool_parse_failures)

    def _engine(self, prefix: str, report: LoadReport) -> Iterator[Metric]:
        for name, text, value in (
            ("num_requests_running", "Sequences in the batch", report.running),
            ("num_requests_waiting", "Sequences waiting for it", report.waiting),
            ("kv_cache_usage_perc", "Share of KV blocks that live sequences hold, 0..1", report.kv_occupancy),
        ):
            gauge = GaugeMetricFamily(prefix + name, text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        waiting = GaugeMetricFamily(
            f"{prefix}num_requests_waiting_by_reason",
            "Waiting sequences: for capacity, or deferred until a sibling has computed their prompt",
            labels=["model_name", "reason"],
        )
        waiting.add_metric([self._model, "capacity"], report.waiting - report.deferred)
        waiting.add_metric([self._model, "deferred"], report.deferred)
        yield waiting
        yield self._cache_config(prefix)
        yield from self._speculation(prefix, self._service.router.speculation)
        if report.max_loaded_adapters:
            yield from self._adapters(prefix, report)
        yield self._counter(f"{prefix}num_preemptions", "Sequences preempted for want of blocks", report.preemptions)
        if prefix == "octavo:":
            for name, text, value in (
                ("batch_rows", "Rows that decoded a token, summed over steps", report.steps.rows),
                ("batch_rows_idle", "Rows held by finished sequences of a static batch", report.steps.idle_rows),
                ("num_swaps", "Preempted sequences whose KV was kept in host memory", report.swaps),
                ("pool_checks", "Passed accounting checks of the block pool while idle", report.checks),
                ("recomputed_tokens", "Tokens computed again after a preemption", report.recomputed),
            ):
                yield self._counter(prefix + name, text, value)
            guidance = self._service.router.guidance
            for name, text, value in (
                ("grammars_compiled", "Grammars compiled in the engine", guidance.grammars),
                ("grammar_compile_seconds", "Time to compile them, while steps run", guidance.grammar_seconds),
                ("grammar_masks", "Masks of allowed tokens, one for each token of a guided row", guidance.masks),
                ("grammar_mask_seconds", "Time to fill them, while the model computes", guidance.mask_seconds),
                ("forced_tokens", "Tokens that a grammar forced, appended without a sample", guidance.forced_tokens),
                ("thinking_budgets_reached", "Answers whose thinking ended by force", guidance.budgets_reached),
            ):
                yield self._counter(prefix + name, text, value)
            yield self._gauge("kv_cache_waste_perc", "Share of the KV pool held and not filled, 0..1", waste(report))
            if report.state_slots:
                yield from self._states(report)
            yield self._gauge("efficiency", "Product of octavo:efficiency_factor, since the start", efficiency(report))
            if report.expert_load is not None:
                yield from self._experts(report.expert_load)
            parts = factors(report)
            yield self._parts("efficiency_factor", "Shares of what was computed, held and asked for", "factor", parts)

    def _adapters(self, prefix: str, report: LoadReport) -> Iterator[Metric]:
        states = {each.name: each.state for each in self._service.adapters.all}
        # The labels and the value, a time, are those that the endpoint picker of the Gateway API reads.
        info = GaugeMetricFamily(
            f"{prefix}lora_requests_info",
            "Time of the report; the labels are the adapters with running and with waiting requests",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        running = ",".join(name for name, state in states.items() if state.running)
        waiting = ",".join(name for name, state in states.items() if state.waiting)
        info.add_metric([str(report.max_loaded_adapters), running, waiting], time.time())
        yield info
        if prefix == "octavo:":
            count = GaugeMetricFamily("octavo:adapters", "Adapters of the server", labels=["model_name", "state"])
            for name in get_args(AdapterState):
                count.add_metric([self._model, name], sum(state.state == name for state in states.values()))
            yield count

    def _speculation(self, prefix: str, found: SpeculationTotals | None) -> Iterator[Metric]:
        totals = found or SpeculationTotals()
        for name, text, value in (
            ("spec_decode_num_drafts", "Drafts of guessed tokens that steps verified", totals.drafts),
            ("spec_decode_num_draft_tokens", "Their tokens", totals.drafted),
            ("spec_decode_num_accepted_tokens", "Those of them that were accepted", totals.accepted),
        ):
            yield self._counter(prefix + name, text, value)
        if found is None:
            return
        text = "Drafts whose token at a position was accepted"
        family = CounterMetricFamily(
            f"{prefix}spec_decode_num_accepted_tokens_per_pos", text, labels=["model_name", "position"]
        )
        for position, count in enumerate(totals.by_position):
            family.add_metric([self._model, str(position)], count)
        yield family
        if prefix == "octavo:":
            text = "Estimated time that drafts saved; negative if they cost more"
            yield self._gauge("spec_decode_seconds_saved", text, totals.seconds_saved)

    def _states(self, report: LoadReport) -> Iterator[Metric]:
        running = report.state_slots_used - report.state_snapshots
        yield self._gauge("state_slots", "Slots for states of sequences and snapshots", report.state_slots)
        text = "Slots in use: by running sequences, or by snapshots that the prefix cache can find"
        yield self._parts("state_slots_used", text, "kind", {"running": running, "snapshot": report.state_snapshots})

    def _experts(self, load: ExpertLoad) -> Iterator[Metric]:
        text = "Tokens of a layer's busiest expert divided by the mean of its experts"
        layers = {"median": load.median, "worst": load.worst}
        yield self._parts("expert_load_max_over_mean", text, "layer", layers)
        yield self._gauge("experts_unused_perc", "Share of experts that computed no token, 0..1", load.unused)

    def _cache_config(self, prefix: str) -> Metric:
        labels = self._service.cache_config()
        info = GaugeMetricFamily(
            f"{prefix}cache_config_info", "Sizes of the KV pool, as labels", labels=["model_name", *labels]
        )
        info.add_metric([self._model, *labels.values()], 1)
        return info

    def _grammar_metrics(self) -> Iterator[Metric]:
        m = self._service.grammar_checks.metrics
        text = "Compiling a grammar and its first masks, in the grammar process"
        family = HistogramMetricFamily("octavo:grammar_check_seconds", text, labels=["model_name"])
        buckets, total = m.compile_seconds.cumulative()
        family.add_metric([self._model], buckets, total)
        yield family
        yield self._counter("octavo:grammar_cache_hits", "Grammars that had been compiled before", m.cache_hits)
        yield self._counter(
            "octavo:grammar_process_restarts", "Ends of the grammar process by a grammar that cost too much", m.restarts
        )
        refused = CounterMetricFamily(
            "octavo:grammar_refusals", "Grammars refused: with 400, or with 503", labels=["model_name", "reason"]
        )
        for reason, count in m.refused.items():
            refused.add_metric([self._model, reason], count)
        yield refused

    def _memory(self) -> Iterator[Metric]:
        budget = self._service.memory()
        if budget:
            yield self._parts("memory_budget_bytes", "Memory as planned at start, all of it in use", "part", budget)
        in_use = self._service.memory_in_use()
        yield self._parts("process_resident_bytes", "Memory that the processes have in use", "process", in_use)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"octavo:{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _parts(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"octavo:{name}", text, labels=["model_name", label])
        for part, value in values.items():
            family.add_metric([self._model, part], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family


def renderer(service: Service) -> Callable[[], bytes]:
    """Build a function that renders all metrics. The label is the served model name."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ServerCollector(service))
    return lambda: generate_latest(registry)
