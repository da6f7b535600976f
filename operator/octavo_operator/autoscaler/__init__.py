"""The autoscaler: polls replicas, keeps the policy's state, and applies the decisions of `autoscale`."""
