"""The gateway: one OpenAI-compatible endpoint for all models of an installation."""
