"""Paged-attention, continuous-batching inference server."""
