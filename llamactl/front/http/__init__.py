"""HTTP/1.1 between clients, this process and instances. It knows no model, no lease and no supervisor, and imports
nothing of the front but itself.
"""
