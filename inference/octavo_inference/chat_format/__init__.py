"""Formats in which models write tool calls and thinking: parsers of answers, and grammars that enforce them."""
