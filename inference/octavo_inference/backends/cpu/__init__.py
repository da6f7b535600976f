"""The CPU backend: one call of the native library (`native/`) per step."""
