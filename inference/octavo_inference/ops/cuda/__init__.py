"""The CUDA backend: what a step needs of a GPU besides the kernels of `ops.triton`."""
