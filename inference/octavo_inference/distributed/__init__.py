"""Tensor parallelism: one decoder over several GPUs of a machine, a process for each.

Each rank holds a shard of every layer (`models.shard`). Collectives inside the step complete sums and logits
(`backends.cuda.collectives`). Rank 0 broadcasts each call to the other ranks before running it itself (`tp_backend`).
All ranks choose the same tokens from the same logits, so no token is ever sent. Rank 0 is the engine's process and
starts the others (`executor`, `worker`). It reads adapters and sends each rank its part (`adapter_sender`), which the
rank prepares in a thread (`rank_adapters`).
"""
