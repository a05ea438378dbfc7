"""What does llama.cpp give us? Loading, measuring, fitting and computing with one model through llama-cpp-python.

The only wing that imports it. Imports nothing else of the instance.
"""
