"""The decisions of the autoscaler: how many replicas, from what was observed. Pure."""
