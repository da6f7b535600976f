"""The native kernels: C++ sources, their build and their loader."""
