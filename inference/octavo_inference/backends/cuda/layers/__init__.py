"""The parts of a decoder layer on the device: one file for each kind of mixer and of feed-forward part."""
