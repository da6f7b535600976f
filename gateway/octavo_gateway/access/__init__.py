"""Access control: API keys, rate limits, and token usage."""
