"""The error of building images."""


class ImageError(Exception):
    """An image cannot be built or pushed; the message contains the fix."""
