"""Endpoints in OpenAI's format.

Bodies are in `requests` and `responses`. There is a module per endpoint, and `endpoints` is the table for the API port.
Another format is another such folder.
"""
