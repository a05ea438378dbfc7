"""llama.cpp's chat layer as a library of ours: its C++ source, how it is built, and where it lies. Shared by instances,
which load it, and the command line, which builds it.
"""
