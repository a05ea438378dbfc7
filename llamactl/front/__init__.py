"""The HTTP front: one endpoint, relayed to the sockets of the running models."""
