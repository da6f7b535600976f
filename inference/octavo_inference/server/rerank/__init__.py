"""Relevance of documents to a query: /score in vLLM's format, /rerank in that of Jina and Cohere.

A score is the cosine similarity of the embeddings of query and document (`similarity`).
"""
