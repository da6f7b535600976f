"""The operator's metrics, under the names client-go and controller-runtime have made usual."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from octavo_operator.metrics.state import StateMetrics

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class QueueMetrics:
    """One work queue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._adds = Counter("workqueue_adds", "Keys added.", registry=registry)
        self._retries = Counter("workqueue_retries", "Keys that failed and came back.", registry=registry)
        self._depth = Gauge("workqueue_depth", "Keys waiting for a worker.", registry=registry)
        self._longest = Gauge(
            "workqueue_longest_running_processor_seconds", "Age of the oldest pass in work.", registry=registry
        )
        self._waited = Histogram(
            "workqueue_queue_duration_seconds", "From add to worker.", buckets=_SECONDS, registry=registry
        )
        self._work = Histogram(
            "workqueue_work_duration_seconds", "Length of a pass.", buckets=_SECONDS, registry=registry
        )

    def follow(self, depth: Callable[[], float], longest: Callable[[], float]) -> None:
        """Read depth and longest running pass from the queue when asked."""
        self._depth.set_function(depth)
        self._longest.set_function(longest)

    def added(self) -> None:
        """A key came."""
        self._adds.inc()

    def retried(self) -> None:
        """A key failed."""
        self._retries.inc()

    def queued(self, seconds: float) -> None:
        """A key waited this long for its worker."""
        self._waited.observe(seconds)

    def worked(self, seconds: float) -> None:
        """A pass took this long."""
        self._work.observe(seconds)


class OperatorMetrics:
    """All metrics of one operator process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queue = QueueMetrics(self.registry)
        self._calls = Counter(
            "rest_client_requests", "Calls to the API server.", ["method", "code"], registry=self.registry
        )
        self._results = Counter("octavo_reconcile", "Passes by result.", ["result"], registry=self.registry)
        for result in ("success", "requeue", "error"):
            # From zero on: a counter that begins with its first event hides that event from `rate` and `increase`.
            self._results.labels(result)
        self._leading = Gauge(
            "leader_election_master_status", "1 while this replica reconciles.", registry=self.registry
        )
        self._desired = Gauge(
            "octavo_desired_replicas", "Replicas wanted.", ["namespace", "name"], registry=self.registry
        )
        self._ready = Gauge(
            "octavo_ready_replicas", "Replicas that serve.", ["namespace", "name"], registry=self.registry
        )
        self._limit = Gauge(
            "octavo_autoscaler_max_replicas",
            "Most replicas the built-in autoscaler may want, where it has a choice.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self._decisions = Counter(
            "octavo_autoscaler_changes",
            "Changes of the wanted replicas by the built-in autoscaler.",
            ["namespace", "name", "reason"],
            registry=self.registry,
        )
        self.states = StateMetrics()
        self.registry.register(self.states)
        self._misses = Counter("octavo_load_samples_missed", "Load reports that did not come.", registry=self.registry)

    def called(self, method: str, status: int) -> None:
        """A call to the API server ended; status 0 is no answer."""
        self._calls.labels(method, str(status) if status else "<error>").inc()

    def reconciled(self, result: str) -> None:
        """A pass ended: `success`, `requeue` or `error`."""
        self._results.labels(result).inc()

    def leading(self, yes: bool) -> None:
        """The lead was taken or lost."""
        self._leading.set(1 if yes else 0)

    def replicas(self, namespace: str, name: str, desired: int, ready: int) -> None:
        """Replicas of one LLMDeployment."""
        self._desired.labels(namespace, name).set(desired)
        self._ready.labels(namespace, name).set(ready)

    def autoscaled(self, namespace: str, name: str, bounds: tuple[int, int] | None) -> None:
        """Least and most replicas of the built-in autoscaler; None where it does not decide."""
        if bounds is not None and bounds[0] < bounds[1]:
            self._limit.labels(namespace, name).set(bounds[1])
        else:
            self._limit.remove(namespace, name)

    def forget(self, namespace: str, name: str) -> None:
        """One LLMDeployment is gone, and its series with it."""
        for gauge in (self._desired, self._ready, self._limit):
            gauge.remove(namespace, name)
        self.states.forget(namespace, name)

    def scaled(self, namespace: str, name: str, reason: str) -> None:
        """The autoscaler changed its mind."""
        self._decisions.labels(namespace, name, reason).inc()

    def missed_sample(self) -> None:
        """A load report did not come."""
        self._misses.inc()

    def text(self) -> bytes:
        """Exposition format."""
        return generate_latest(self.registry)
