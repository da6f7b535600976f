"""Tensor parallelism: one decoder over several GPUs of a machine, a process for each.

Every rank has a part of each layer (`shard`), sums and logits are completed by collectives inside the step (`group`),
and every rank is told every call before rank 0 makes it itself (`parallel`). All ranks choose the same tokens from the
same logits, so no token is ever sent. Rank 0 is the engine's process; it starts the others (`ranks`, `rank`).
"""
