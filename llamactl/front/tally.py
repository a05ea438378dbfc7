"""How many requests were there, and how did they go? The front's own counters, by model.

Plain integers and fixed buckets, counted once for each request when it has ended; what Prometheus makes of them is
decided at scrape time, in `metrics`. A model's name comes from a lease, never from a client's body, or anybody could
fill the memory with names.
"""

from bisect import bisect_left

from llamactl.front.http.access import STATUS_CLIENT_GONE, RequestRecord

WAIT_BOUNDS_S = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
FIRST_BYTE_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
DURATION_BOUNDS_S = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class Histogram:
    """How many values lay within each bound; the last count is of those above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class ModelCounts:
    """What there is to say of one model's requests (of the front's own answers, under the empty name)."""

    __slots__ = (
        "completion_tokens",
        "cut",
        "duration",
        "first_byte",
        "prompt_tokens",
        "received_bytes",
        "sent_bytes",
        "statuses",
        "waited",
    )

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.cut = 0
        self.waited = Histogram(WAIT_BOUNDS_S)
        self.first_byte = Histogram(FIRST_BYTE_BOUNDS_S)
        self.duration = Histogram(DURATION_BOUNDS_S)
        self.received_bytes = 0
        self.sent_bytes = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0


class Tally:
    """All counts of this front process."""

    def __init__(self) -> None:
        self.models: dict[str, ModelCounts] = {}

    def count(self, record: RequestRecord) -> None:
        """Of a request that has ended."""
        counts = self.models.get(record.model)
        if counts is None:
            counts = self.models[record.model] = ModelCounts()
        status = record.status or STATUS_CLIENT_GONE
        counts.statuses[status] = counts.statuses.get(status, 0) + 1
        if record.is_cut:
            counts.cut += 1
        if record.waited_s:
            counts.waited.add(record.waited_s)
        if record.first_byte_s:
            counts.first_byte.add(record.first_byte_s)
        counts.duration.add(record.ended_s - record.began_s)
        counts.received_bytes += record.received_bytes
        counts.sent_bytes += record.sent_bytes
        if record.completion_tokens or record.prompt_tokens:
            counts.prompt_tokens += record.prompt_tokens
            counts.completion_tokens += record.completion_tokens
