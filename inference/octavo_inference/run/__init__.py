"""One step on a device: the ragged batch and what comes out of it."""
