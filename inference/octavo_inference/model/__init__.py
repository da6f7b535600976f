"""Model descriptions and weights."""
