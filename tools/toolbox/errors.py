"""What can go wrong, in words that say what to do."""


class ToolError(Exception):
    """A program cannot be built or found; the message says what to do."""
