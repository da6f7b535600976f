"""Routing: chooses the replica for a request. Pure."""
