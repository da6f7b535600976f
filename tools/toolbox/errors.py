"""The error of the toolbox."""


class ToolError(Exception):
    """A program cannot be built or found; the message contains the fix."""
