"""Benchmarks: programs that measure Octavo and compare it with other systems."""
