"""Backends: how a step is computed on a device. Nothing outside this package knows what the device is."""
