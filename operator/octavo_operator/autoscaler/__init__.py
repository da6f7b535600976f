"""The autoscaler: polls replicas, keeps what was learned, and applies the decisions of `autoscale`."""
