"""The server: its life, its ports and its HTTP surface."""
