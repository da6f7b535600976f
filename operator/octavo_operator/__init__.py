"""Reconciles LLMDeployments into inference pods and scales them."""
