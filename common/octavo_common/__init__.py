"""Code shared by operator, gateway and server: logging, failpoints, fair queueing, step cost."""
