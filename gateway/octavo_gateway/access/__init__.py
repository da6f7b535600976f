"""Who may ask for how much: API keys, rate limits, usage."""
