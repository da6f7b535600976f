"""The reference backend: every model in plain float32 torch, op by op."""
