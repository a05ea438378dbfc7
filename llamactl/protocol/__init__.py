"""What do llamactl's processes say to each other? Every message of both sockets, defined once.

Both sockets carry JSON objects, one a line (`lines`). `report_socket` is between children and the supervisor,
`control_socket` between clients and the supervisor; `values` are the parts that both use, `descriptions` those by which
the supervisor answers. Times named `_s` with a moment (`last_used_s`) are seconds of CLOCK_MONOTONIC, which all
processes of a machine share.
"""
