"""Shared by all benchmarks: loads, servers, HTTP clients, result files, plots."""
