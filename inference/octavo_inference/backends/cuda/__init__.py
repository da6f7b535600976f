"""The CUDA backend: a decoder in Triton kernels and cuBLAS on one GPU.

Three kinds of tests cover it:

- Triton's interpreter, on CPU tensors (tests/kernels): every kernel, the decoder, the sampler, block transfers to the
  host and back, and the memory budget. The whole engine is compared token for token, with steps launched ahead and
  with graph replay. A test also checks that `rehearsal` covers every tile that serving needs.
- Compilation for GPUs that are not present (tests/kernels/test_compiles.py): kernels compile, fit the GPU's shared
  memory and do not spill.
- A GPU (`python -m bench.gpu check`): races, pinned and asynchronous copies, bfloat16 rounding, and speed.
"""
