"""Endpoints in Anthropic's format: messages, whole and streamed, and their token counts.

Bodies are in `requests` and `responses`, error objects in `errors`, and `endpoints` is the table for the API port.
"""
