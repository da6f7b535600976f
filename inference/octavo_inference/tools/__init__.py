"""Command line tools in addition to the server."""
