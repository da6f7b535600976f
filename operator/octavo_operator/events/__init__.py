"""Kubernetes events about an LLMDeployment: what is new, and its record."""
