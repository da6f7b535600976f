"""The LLMDeployment API: typed models and what is generated from them."""
