"""The simulator's pod compared with a real server: `python -m bench.simulator`."""
