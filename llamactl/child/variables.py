"""By which environment variables is a child told its orders?

Names alone: an instance reads one of them before it has imported anything that takes time. What they hold, and how, is
the matter of `orders`.
"""

MODEL = "LLAMACTL_MODEL"
SPEC = "LLAMACTL_SPEC"
GENERATION = "LLAMACTL_GENERATION"
SOCKET = "LLAMACTL_SOCKET"
REPORT = "LLAMACTL_REPORT"
MARGINS = "LLAMACTL_MARGINS"
HOST_ROOM = "LLAMACTL_HOST_ROOM"
MEASURED = "LLAMACTL_MEASURED"
LOAD_STALL = "LLAMACTL_LOAD_STALL"
EXTRA_BUFTS = "LLAMACTL_EXTRA_BUFTS"
DEVICES_ONLY = "LLAMACTL_DEVICES_ONLY"
DEVICE_IDS = "LLAMACTL_DEVICE_IDS"

ORDERS = frozenset(
    {
        MODEL,
        SPEC,
        GENERATION,
        SOCKET,
        REPORT,
        MARGINS,
        HOST_ROOM,
        MEASURED,
        LOAD_STALL,
        EXTRA_BUFTS,
        DEVICES_ONLY,
        DEVICE_IDS,
    }
)
"""These are llamactl's alone: the `env` of a model may set none of them."""

LOG_LEVEL = "LLAMACTL_LOG_LEVEL"
LLAMA_LOG = "LLAMACTL_LLAMA_LOG"
"""These the `env` of a model may set, for it alone."""
