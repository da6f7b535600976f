"""Backends: each computes a step on one kind of device. Code outside this package is independent of the device."""
