"""Octavo's gateway compared with other proxies: `python -m bench.gateway`."""
