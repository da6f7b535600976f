"""What every package uses: errors, logs, failpoints, memory. Imports nothing else of the server."""
