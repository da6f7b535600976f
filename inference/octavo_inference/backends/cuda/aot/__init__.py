"""Kernels compiled ahead of time: the cache, and what stands in for a GPU where there is none."""
