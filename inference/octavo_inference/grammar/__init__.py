"""Grammars of structured output: their sources, and the masks of tokens that they allow (llguidance)."""
