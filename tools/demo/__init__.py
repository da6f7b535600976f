"""The demonstration: a real node, a model that answers, scales and drains. The end-to-end tests use the same steps."""
