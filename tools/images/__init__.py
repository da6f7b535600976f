"""Builds Octavo's images and the demonstration's model image with whatever builder the machine has."""
