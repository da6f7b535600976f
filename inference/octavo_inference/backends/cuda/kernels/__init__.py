"""Triton kernels, one family per file: a kernel and a wrapper function over tensors that launches it.

Rules for all kernels, so that CUDA graphs can capture a step and tests can run it without a GPU:

- The caller passes output tensors; a wrapper never allocates, synchronizes or reads from the device.
- Grids depend on shapes alone. The kernel skips padding beyond the batch.
- Offsets of rows and blocks are int64: a pool has more than 2**31 elements.
- Sums are float32. Matrix products have operands in the type of the activations: bfloat16 on a GPU, float32 ("ieee",
  exact products) with float32 activations, as in the interpreter (TRITON_INTERPRET=1).
- No autotuning: tile sizes are arguments with defaults from `launch_configs`.
"""

import os

# Fused multiply-add is Triton's default so far; the next version changes it.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
