"""Where is received data put? Into one buffer that all connections of the process share.

The loop reads into it and calls the protocol at once, which copies out what came: so an idle connection costs no
buffer, and no read brings more than READ_BYTES, which is what bounds how much one connection can make us hold.
"""

READ_BYTES = 64 * 1024
READ_VIEW = memoryview(bytearray(READ_BYTES))
