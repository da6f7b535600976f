"""Shared by all packages: errors, framing, memory. Imports nothing else of the server."""
