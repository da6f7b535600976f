"""Prometheus metrics of the gateway. Labels contain deployments and status codes, never text of a user."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.registry import ModelRegistry, NamedModel
from octavo_gateway.pool.reservation import Reservation

UNKNOWN = "unknown"
# Number of key names with their own series; all other names share one series, and keys without a name another.
MOST_KEYS = 200
# The same for the names of adapters, which servers load and unload at run time.
MOST_ADAPTERS = 1000
OTHER = "other"
_HOLD_BUCKETS = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300)
_OVERHEAD_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


def label(pool: ModelPool) -> str:
    """The value of the label `model`: the served name, so that aliases and invented names add no series."""
    return pool.deployment.models[0]


class GatewayMetrics:
    """All metrics of one gateway process, in a registry of their own."""

    def __init__(self, models: ModelRegistry) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "octavo_gateway_requests", "Requests answered, by route and HTTP status", ["model", "route", "code"],
            registry=registry,
        )  # fmt: skip
        self.tokens = Counter(
            "octavo_gateway_tokens", "Tokens of answers, by route, estimated for answers without usage",
            ["model", "route", "kind"], registry=registry,
        )  # fmt: skip
        self.malformed = Counter(
            "octavo_gateway_malformed_requests", "Requests that are not valid HTTP", registry=registry
        )
        self.retries = Counter(
            "octavo_gateway_retries", "Requests sent to a second replica", ["model", "reason"], registry=registry
        )
        self.broken = Counter(
            "octavo_gateway_broken_streams", "Streams that a replica aborted", ["model"], registry=registry
        )
        self.hold_seconds = Histogram(
            "octavo_gateway_hold_seconds", "Time held before a replica was free", ["model"],
            buckets=_HOLD_BUCKETS, registry=registry,
        )  # fmt: skip
        self.overhead = Histogram(
            "octavo_gateway_overhead_seconds", "Time from the request's head to its dispatch, without time held",
            buckets=_OVERHEAD_BUCKETS, registry=registry,
        )  # fmt: skip
        self.wakes = Counter(
            "octavo_gateway_wakes", "Calls to the operator to start a replica", ["result"], registry=registry
        )
        for result in ("accepted", "failed"):
            self.wakes.labels(result)
        self.key_requests = Counter(
            "octavo_gateway_key_requests", "Requests of a key, by HTTP status", ["key", "code"], registry=registry
        )
        self.key_tokens = Counter(
            "octavo_gateway_key_tokens", "Tokens of a key, estimated for answers without usage", ["key", "kind"],
            registry=registry,
        )  # fmt: skip
        self.limit_hits = Counter(
            "octavo_gateway_limit_hits", "Requests rejected by a key's limit", ["key", "limit"], registry=registry
        )
        self.key_file_valid = Gauge(
            "octavo_gateway_key_file_valid", "0 while the key file is invalid and the previous keys apply",
            registry=registry,
        )  # fmt: skip
        self.key_file_valid.set(1)
        self.gateways = Gauge(
            "octavo_gateway_gateways", "Gateways that share limits, this one included", ["state"], registry=registry
        )
        self.peer_errors = Counter(
            "octavo_gateway_peer_errors",
            "Gossip messages of other gateways that raised an unexpected error",
            registry=registry,
        )
        self._routed = Counter(
            "octavo_gateway_routed_requests", "Requests sent to a replica, by reason of the choice",
            ["model", "reason"], registry=registry,
        )  # fmt: skip
        self._against = Counter(
            "octavo_gateway_routed_against_affinity", "Requests not sent to the replica with the longest cached prefix",
            ["model"], registry=registry,
        )  # fmt: skip
        self._prefix = Counter(
            "octavo_gateway_prefix_tokens", "Prompt tokens of answers with usage: all, predicted to be "
            "cached at the replica, and cached there", ["model", "kind"], registry=registry,
        )  # fmt: skip
        self._keys: set[str] = set()
        self._adapters: set[str] = set()
        self._models = models
        registry.register(_Gauges(models))

    def model(self, served: NamedModel) -> str:
        """The value of the label `model` for requests: the served name of a model, or the name of an adapter."""
        name = served.adapter
        if not name:
            return label(served.pool)
        if name not in self._adapters:
            if len(self._adapters) >= MOST_ADAPTERS:
                return OTHER
            self._adapters.add(name)
        return name

    def key(self, name: str) -> str:
        """The value of the label `key` for requests with an API key of that name; "" for a key without a name."""
        if not name:
            return "unnamed"
        if name not in self._keys:
            if len(self._keys) >= MOST_KEYS:
                return OTHER
            self._keys.add(name)
        return name

    def used(self, model: str, route: str, prompt: int, output: int) -> None:
        """Count the tokens of an answer. `model` is a label, `route` the template of a route."""
        self.tokens.labels(model, route, "prompt").inc(prompt)
        self.tokens.labels(model, route, "generation").inc(output)

    def routed(self, model: str, reservation: Reservation) -> None:
        """Count a routing choice. `model`: the label of the request's model."""
        self._routed.labels(model, reservation.choice.reason).inc()
        if reservation.choice.against:
            self._against.labels(model).inc()

    def answered(self, model: str, reservation: Reservation, *, prompt: int, cached: int | None) -> None:
        """Count predicted and actual cached prompt tokens. `cached` is None if the answer did not report it."""
        if cached is not None:
            for kind, tokens in (("all", prompt), ("predicted", reservation.matched), ("cached", cached)):
                self._prefix.labels(model, kind).inc(tokens)

    def exposition(self) -> bytes:
        """All metrics in the Prometheus text format."""
        # Create the series at zero: `rate` and `increase` miss the first event of a series that begins with it.
        for model in self._models.models():
            self.broken.labels(self.model(model))
            self._against.labels(self.model(model))
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        in_flight = GaugeMetricFamily(
            "octavo_gateway_in_flight_requests", "Requests in flight at replicas", labels=["model"]
        )
        held = GaugeMetricFamily("octavo_gateway_held_requests", "Held requests", labels=["model"])
        waiting = GaugeMetricFamily(
            "octavo_gateway_held_by_priority", "Held requests, by priority", labels=["model", "priority"]
        )
        oldest = GaugeMetricFamily(
            "octavo_gateway_oldest_hold_seconds",
            "Waiting time of the oldest held request, in seconds",
            labels=["model"],
        )
        endpoints = GaugeMetricFamily("octavo_gateway_upstream_endpoints", "Known replicas", labels=["model", "state"])
        age = GaugeMetricFamily(
            "octavo_gateway_report_age_seconds",
            "Age of the oldest load report of a ready replica",
            labels=["model"],
        )
        rejected = CounterMetricFamily(
            "octavo_gateway_rejected_reports",
            "Implausible load reports of replicas",
            labels=["model", "kind"],
        )
        index = GaugeMetricFamily(
            "octavo_gateway_prefix_index_entries",
            "Entries of the prefix index: text pieces, block hashes and assumed pieces",
            labels=["kind"],
        )
        adapters = GaugeMetricFamily(
            "octavo_gateway_adapter_replicas",
            "Replicas that list an adapter, by its state there",
            labels=["model", "adapter", "state"],
        )
        known = self._models.index
        stride = GaugeMetricFamily(
            "octavo_gateway_prefix_hash_stride", "The prefix index keeps one in this many block hashes"
        )
        stride.add_metric([], known.stride)
        for kind, count in (("texts", len(known)), ("hashes", known.hashes), ("assumed", known.assumed)):
            index.add_metric([kind], count)
        for pool in self._models.pools():
            model = label(pool)
            now = pool.clock()
            replicas = pool.replicas.values()
            ages = [old for one in replicas if one.endpoint.ready and (old := one.age(now)) is not None]
            age.add_metric([model], max(ages, default=0.0))
            for kind, count in pool.reports.rejected.items():
                rejected.add_metric([model, kind], count)
            accepting = sum(one.accepts(now) for one in replicas)
            in_flight.add_metric([model], pool.in_flight)
            held.add_metric([model], len(pool.queue))
            for priority, count in pool.queue.by_priority().items():
                waiting.add_metric([model, str(priority)], count)
            oldest.add_metric([model], pool.queue.oldest(now))
            for adapter, states in pool.adapters.states.items():
                for state, number in states.items():
                    adapters.add_metric([model, adapter, state], number)
            endpoints.add_metric([model, "accepting"], accepting)
            endpoints.add_metric([model, "not-accepting"], len(replicas) - accepting)
        return [in_flight, held, waiting, oldest, endpoints, adapters, age, rejected, index, stride]
