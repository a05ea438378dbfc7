"""Which answers does a JSON schema allow? Schemas to GBNF, as text.

Imports nothing of the instance, and needs no llama.cpp.
"""
