"""The size of the memory that products share. Imports nothing, for memory sums on machines without GPU libraries."""

WORKSPACE = 1 << 23
"""Floats for a piece of dequantized weights (`linear.Linear`). The partial sums of `linear.linear` need no more."""
