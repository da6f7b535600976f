"""Prometheus metrics: the operator's own, and the state of every LLMDeployment."""
