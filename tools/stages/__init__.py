"""Runs the stages of `make test`: what computes beside what waits, and one table at the end."""
