"""The GPU's kernels, backend and engine, checked and measured: `python -m bench.gpu`."""
