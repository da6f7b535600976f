"""Helpers that tests of every tier share; typed, and checked by mypy."""
