"""Octavo's gateway next to other proxies: `python -m bench.gateway`."""
