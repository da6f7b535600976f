"""The demo: a real node with a model that serves, scales and drains. The end-to-end tests use the same steps."""
