"""Checks and measurements of the GPU's kernels, backend and engine: `python -m bench.gpu`."""
