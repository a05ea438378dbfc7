"""What may a chat template do, and is this one? Jinja in a bounded sandbox, shared by instances, which render, and the
command line, which only reads.
"""
