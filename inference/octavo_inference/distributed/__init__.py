"""Tensor parallelism: one decoder over several GPUs of a machine, a process for each.

Every rank has a part of each layer (`models.shard`), sums and logits are completed by collectives inside the step
(`backends.cuda.collectives`), and every rank is told every call before rank 0 makes it itself (`tp_backend`). All ranks
choose the same tokens from the same logits, so no token is ever sent. Rank 0 is the engine's process; it starts the
others (`executor`, `worker`).
"""
