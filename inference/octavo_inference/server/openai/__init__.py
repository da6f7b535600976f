"""Endpoints in OpenAI's format."""
