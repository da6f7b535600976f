"""The page at `/`: the model, its settings and load, and a chat to try it."""
