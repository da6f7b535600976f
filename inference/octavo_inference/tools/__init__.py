"""Programs beside the server."""
