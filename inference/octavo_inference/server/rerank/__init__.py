"""Relevance of documents to a query: /score in vLLM's format, /rerank in that of Jina and Cohere.

A score is that of a model made for it (`cross_encoder`). With other models it is the similarity of embeddings
(`similarity`), or the model's own judgement (`judgement`): --relevance.
"""
