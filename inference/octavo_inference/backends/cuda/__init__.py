"""The CUDA backend: a decoder in Triton kernels and cuBLAS on one GPU.

Where what is proven:

- in Triton's interpreter, on tensors of the CPU (tests/kernels): every kernel, the decoder, the sampler, blocks to the
  host and back, the whole engine token for token, launched ahead and through recorded graphs, the budget, and that
  `rehearsal` needs no other tiles than serving;
- by compiling for cards that are not there (tests/kernels/test_compiles.py): that kernels compile, fit a card's shared
  memory and do not spill;
- on a card only (`python -m bench.gpu check`): races, pinned and asynchronous copies, rounding of bfloat16, and speed.
"""
