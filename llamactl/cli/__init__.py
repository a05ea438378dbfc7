"""The command `llamactl`: what a person types, and what a script reads. It starts fast: it imports nothing heavy."""
