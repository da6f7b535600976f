"""Models computed by transformers, over our paged KV."""
