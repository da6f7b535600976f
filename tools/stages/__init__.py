"""Runs the stages of `make test`, CPU-bound ones in parallel with waiting ones, and prints one table at the end."""
