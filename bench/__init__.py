"""Benchmarks: programs that measure Octavo and put it next to other systems."""
