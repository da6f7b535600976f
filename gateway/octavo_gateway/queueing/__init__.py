"""Requests that wait at the gateway: order, and pace of dispatch."""
