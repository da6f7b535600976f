"""A real Prometheus beside a cluster: what alerts and dashboards are tested with, and drawn from."""
