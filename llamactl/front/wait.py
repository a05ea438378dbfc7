"""When does a request that waits for its model say so, and when does it give up?

A client that hears nothing for long may be cut off by a proxy on the way: a comment every COMMENT_S keeps its stream.
How long it may wait in all is `queue_timeout`. A request that gets its lease at once never has one of these.
"""

import asyncio
import time
from collections.abc import Callable

from llamactl.front.http.access import RequestRecord

COMMENT_S = 10.0


class Wait:
    """Of one request, from the moment that it is in the queue to `end`; its time is counted in `record`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        record: RequestRecord,
        comment: Callable[[], bool],
        limit_s: float,
        give_up: Callable[[float], None],
    ) -> None:
        """`comment` is called every COMMENT_S for as long as it says True, `give_up` after `limit_s`; 0: never."""
        self._loop = loop
        self._record = record
        self._comment = comment
        record.queued_s = time.monotonic()
        self._comment_timer = loop.call_later(COMMENT_S, self._on_comment)
        self._limit_timer = loop.call_later(limit_s, give_up, limit_s) if limit_s else None

    def end(self) -> None:
        self._record.end_wait(time.monotonic())
        self._comment_timer.cancel()
        if self._limit_timer is not None:
            self._limit_timer.cancel()

    def _on_comment(self) -> None:
        if self._comment():
            self._comment_timer = self._loop.call_later(COMMENT_S, self._on_comment)
