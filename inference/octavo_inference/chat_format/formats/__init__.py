"""The formats of tool calls, one file for each family."""
