"""The error of cluster operations."""


class ClusterError(Exception):
    """A cluster cannot be started, found or removed; the message names the problem and the fix."""
