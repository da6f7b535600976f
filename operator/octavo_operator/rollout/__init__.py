"""Which revision runs with how many replicas."""
