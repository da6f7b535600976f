"""Sizes of memory that kernels share. Imports nothing, for memory sums on machines without GPU libraries."""

WORKSPACE = 1 << 23
"""Floats for a piece of dequantized weights (`linear.Linear`). The partial sums of `linear.linear` need no more."""
CHUNK = 32
"""Most tokens of a chunk of a state layer's prompt. A gated delta net has a matrix of so many columns for each."""
