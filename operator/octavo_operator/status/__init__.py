"""The status of an LLMDeployment: its input, its conditions, its fields."""
