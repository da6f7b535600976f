"""A real Prometheus next to a cluster, to test alerts and dashboards, and to draw dashboards for the docs."""
