"""Which token comes next, for whom? Continuous batching of many requests over one context, or embeddings.

Imports `llama` and `grammar`.
"""
