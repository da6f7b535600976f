"""The transformers backend: models of the transformers library over the paged KV pool."""
