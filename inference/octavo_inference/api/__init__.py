"""The HTTP surface of the server."""
