"""Endpoints in OpenAI's format.

Bodies in `requests` and `responses`, a module for each endpoint, and `endpoints`, the table for the API port. Another
format is another such folder.
"""
