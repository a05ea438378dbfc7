"""What is a child of the supervisor told, and which properties does its unit get?

Pure, and shared by the supervisor that starts instances and measure children, the configuration that checks what they
may be given, and the children themselves.
"""
