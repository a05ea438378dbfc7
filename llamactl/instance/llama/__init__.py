"""What does llama.cpp give us? Loading, measuring, fitting and computing with one model through llama-cpp-python: the
only wing that imports it. Imports nothing of the instance but its orders (`environ`).
"""
