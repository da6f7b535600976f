"""The simulator's pod next to a real server: `python -m bench.simulator`."""
