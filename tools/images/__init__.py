"""Builds Octavo's images and the demo's model image with the builder of this machine."""
