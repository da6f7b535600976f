"""The parts of the public APIs that the gateway implements itself: errors, fields of requests, token usage, models."""
