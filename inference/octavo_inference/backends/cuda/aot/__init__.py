"""Kernels compiled ahead of time: their cache, and substitutes for a GPU where there is none."""
