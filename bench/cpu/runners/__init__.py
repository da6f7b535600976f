"""Processes that load a system once and run the requested loads."""
