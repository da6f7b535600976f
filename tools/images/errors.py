"""What can go wrong, in words that say what to do."""


class ImageError(Exception):
    """An image cannot be built or pushed; the message says what to do."""
