"""Endpoints of the tokenizer, in vLLM's format: text to tokens, tokens to text, and what the tokenizer is."""
