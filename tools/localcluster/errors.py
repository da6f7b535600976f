"""What goes wrong with a cluster, told to people."""


class ClusterError(Exception):
    """A cluster cannot be started, found or removed; the message names what and the fix."""
