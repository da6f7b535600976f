"""Triton kernels, one family per file: a kernel and one plain function over tensors that launches it.

What holds for all of them, so that a step can be recorded as a CUDA graph and proven without a GPU:

- Outputs are given by the caller; a wrapper allocates nothing, waits for nothing and reads nothing off the device.
- Grids depend on shapes alone. Padding beyond the batch is skipped by the kernel.
- Offsets of rows and blocks have 64 bits: a pool has more than 2**31 elements.
- Sums are float32. Products of matrices take the type of the activations: bfloat16 on a GPU, float32 ("ieee", exact
  products) where the activations are float32, as in the interpreter (TRITON_INTERPRET=1).
- No autotuning: tile sizes are arguments with defaults from `tiles`.
"""

import os

# Multiply-adds in one rounding, as Triton's default has been: the next version's is to be the other one.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
