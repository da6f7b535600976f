"""The operator's metrics, under the names that client-go and controller-runtime use."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from octavo_operator.metrics.state import StateMetrics

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class QueueMetrics:
    """Metrics of one work queue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._adds = Counter("workqueue_adds", "Keys added to the work queue.", registry=registry)
        self._retries = Counter(
            "workqueue_retries", "Keys that failed and were added again with a back-off.", registry=registry
        )
        self._depth = Gauge("workqueue_depth", "Keys waiting for a worker.", registry=registry)
        self._longest = Gauge(
            "workqueue_longest_running_processor_seconds", "Age of the oldest running pass.", registry=registry
        )
        self._waited = Histogram(
            "workqueue_queue_duration_seconds",
            "Seconds that a key waited in the queue for a worker.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._work = Histogram(
            "workqueue_work_duration_seconds", "Duration of a reconcile pass.", buckets=_SECONDS, registry=registry
        )

    def follow(self, depth: Callable[[], float], longest: Callable[[], float]) -> None:
        """Read depth and longest running pass from the queue at each scrape."""
        self._depth.set_function(depth)
        self._longest.set_function(longest)

    def added(self) -> None:
        """Count a key added."""
        self._adds.inc()

    def retried(self) -> None:
        """Count a retry."""
        self._retries.inc()

    def queued(self, seconds: float) -> None:
        """Observe the seconds that a key waited for a worker."""
        self._waited.observe(seconds)

    def worked(self, seconds: float) -> None:
        """Observe the duration of a pass in seconds."""
        self._work.observe(seconds)


class OperatorMetrics:
    """All metrics of one operator process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queue = QueueMetrics(self.registry)
        self._calls = Counter(
            "rest_client_requests", "Requests to the API server.", ["method", "code"], registry=self.registry
        )
        self._results = Counter("octavo_reconcile", "Reconcile passes by result.", ["result"], registry=self.registry)
        for result in ("success", "requeue", "error"):
            # Starts at 0: `rate` and `increase` miss the first event of a series that starts at 1.
            self._results.labels(result)
        self._leading = Gauge(
            "leader_election_master_status", "1 while this replica is the leader.", registry=self.registry
        )
        self._desired = Gauge(
            "octavo_desired_replicas", "Desired replicas.", ["namespace", "name"], registry=self.registry
        )
        self._ready = Gauge("octavo_ready_replicas", "Ready replicas.", ["namespace", "name"], registry=self.registry)
        self._limit = Gauge(
            "octavo_autoscaler_max_replicas",
            "Maximum replicas of the built-in autoscaler; no series where minimum and maximum are equal.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self._decisions = Counter(
            "octavo_autoscaler_changes",
            "Changes of the desired replicas by the built-in autoscaler.",
            ["namespace", "name", "reason"],
            registry=self.registry,
        )
        self.states = StateMetrics()
        self.registry.register(self.states)
        self._misses = Counter(
            "octavo_load_samples_missed", "Requests for a load report that failed.", registry=self.registry
        )

    def called(self, method: str, status: int) -> None:
        """Count a call to the API server; status 0 means no response."""
        self._calls.labels(method, str(status) if status else "<error>").inc()

    def reconciled(self, result: str) -> None:
        """Count a pass by result: `success`, `requeue` or `error`."""
        self._results.labels(result).inc()

    def leading(self, yes: bool) -> None:
        """Set whether this process is the leader."""
        self._leading.set(1 if yes else 0)

    def replicas(self, namespace: str, name: str, desired: int, ready: int) -> None:
        """Set the replicas of one LLMDeployment."""
        self._desired.labels(namespace, name).set(desired)
        self._ready.labels(namespace, name).set(ready)

    def autoscaled(self, namespace: str, name: str, bounds: tuple[int, int] | None) -> None:
        """Set minimum and maximum replicas of the built-in autoscaler; None in other modes."""
        if bounds is not None and bounds[0] < bounds[1]:
            self._limit.labels(namespace, name).set(bounds[1])
        else:
            self._limit.remove(namespace, name)

    def forget(self, namespace: str, name: str) -> None:
        """Remove the series of a deleted LLMDeployment."""
        for gauge in (self._desired, self._ready, self._limit):
            gauge.remove(namespace, name)
        self.states.forget(namespace, name)

    def scaled(self, namespace: str, name: str, reason: str) -> None:
        """Count a change of the desired replicas by the autoscaler."""
        self._decisions.labels(namespace, name, reason).inc()

    def missed_sample(self) -> None:
        """Count a failed request for a load report."""
        self._misses.inc()

    def text(self) -> bytes:
        """All metrics in the Prometheus exposition format."""
        return generate_latest(self.registry)
