"""Processes that load a system once and run the loads they are sent."""
