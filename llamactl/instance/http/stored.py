"""Which responses are kept, and for how long?

In memory, while the instance runs: as many as are below a number and a size, each for a time after its last use. One
that follows another holds all items of their conversation, so it can be gone on with when the first is forgotten;
each counts with all that it holds, which is more than what several take together.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from llamactl.bodies import refuse
from llamactl.dialects.responses import CountBody, Item, ResponsesBody
from llamactl.dialects.responses_chat import Conversion, convert_responses
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.http.formats import encode_json
from llamactl.instance.http.output_items import make_id

_PREFIXES = {"function_call": "fc", "custom_tool_call": "ctc", "reasoning": "rs", "message": "msg"}
MAX_LISTED = 100
MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20
KEPT_S = 6 * 3600.0


Keep = Callable[[dict[str, Any], Sequence[Item]], None]
"""Takes a response that has ended, and the items of its answer."""


@dataclass(frozen=True)
class StoredResponse:
    response: dict[str, Any]
    input: tuple[Item, ...]
    """Of its own request."""
    history: tuple[Item, ...]
    """Of the whole conversation, its own answer included."""
    n_bytes: int


@dataclass
class _Kept:
    stored: StoredResponse
    until_s: float


class ResponseStore:
    """Of one instance. Belongs to the event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        kept_s: float = KEPT_S,
    ) -> None:
        self._clock = clock
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept_s = kept_s
        self._kept: dict[str, _Kept] = {}
        """Longest unused first."""
        self._n_bytes = 0

    def add(self, stored: StoredResponse) -> None:
        """Keep a response; the oldest ones are forgotten where there is no space for all."""
        self._drop(stored.response["id"])
        self._kept[stored.response["id"]] = _Kept(stored, self._clock() + self._kept_s)
        self._n_bytes += stored.n_bytes
        self._forget()

    def find(self, response_id: str) -> StoredResponse | None:
        """Which is a use of it."""
        self._forget()
        kept = self._kept.pop(response_id, None)
        if kept is None:
            return None
        kept.until_s = self._clock() + self._kept_s
        self._kept[response_id] = kept
        return kept.stored

    def require(self, response_id: str, field: str = "") -> StoredResponse:
        """Raises LlamactlError. `field`: of the request that names it."""
        stored = self.find(response_id)
        if stored is None:
            what = f"cannot use `{field}`" if field else "cannot find response"
            raise LlamactlError(
                ErrorCode.NOT_FOUND,
                f"{what}: no response {response_id[:120]!r} is kept",
                hint="they are for some hours, while their model runs, unless `store` is false",
            )
        return stored

    def remove(self, response_id: str) -> None:
        """Raises LlamactlError where it is not kept."""
        self.require(response_id)
        self._drop(response_id)

    def find_item(self, item_id: str) -> Item | None:
        """Of the responses that are kept, the latest first."""
        self._forget()
        for kept in reversed(self._kept.values()):
            for item in kept.stored.history:
                if item.id == item_id:
                    return item
        return None

    def convert(self, body: CountBody) -> Conversion:
        """The chat of a request that may go on with what is kept."""
        return convert_responses(body, self._find_history(body), self.find_item)

    def _find_history(self, body: CountBody) -> tuple[Item, ...]:
        if body.previous_response_id is None:
            return ()
        return self.require(body.previous_response_id, "previous_response_id").history

    def make_keep(self, body: ResponsesBody, conversion: Conversion, n_bytes: int) -> Keep:
        """What keeps the response, when it has ended. `n_bytes`: of the request."""
        previous = self.find(body.previous_response_id) if body.previous_response_id is not None else None
        history = () if previous is None else previous.history
        n_before = 0 if previous is None else previous.n_bytes

        def keep(response: dict[str, Any], output: Sequence[Item]) -> None:
            given = tuple(_name_item(item) for item in conversion.items)
            n_all = n_before + n_bytes + len(encode_json(response))
            self.add(StoredResponse(response, given, (*history, *given, *output), n_all))

        return keep

    def _drop(self, response_id: str) -> None:
        kept = self._kept.pop(response_id, None)
        if kept is not None:
            self._n_bytes -= kept.stored.n_bytes

    def _forget(self) -> None:
        now_s = self._clock()
        while self._kept:
            oldest = next(iter(self._kept))
            is_over = len(self._kept) > self._max_responses or self._n_bytes > self._max_bytes
            if not is_over and self._kept[oldest].until_s > now_s:
                return
            self._drop(oldest)


def _name_item(item: Item) -> Item:
    """With an id, by which it can be referred to."""
    if item.id is not None:
        return item
    kind = item.type or "message"
    return msgspec.structs.replace(item, type=kind, id=make_id(_PREFIXES.get(kind, "item")))


def list_input(stored: StoredResponse, query: Mapping[str, str]) -> dict[str, Any]:
    """The items of its input, latest first unless `order` is `asc`. Raises LlamactlError."""
    items = [_show_item(item) for item in stored.input]
    if query.get("order", "desc") == "desc":
        items.reverse()
    elif query["order"] != "asc":
        raise refuse(f"cannot use `order`: {query['order'][:20]!r} is neither asc nor desc")
    limit = query.get("limit", "20")
    if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit) <= MAX_LISTED:
        raise refuse(f"cannot use `limit`: {limit[:20]!r} is no number from 1 to {MAX_LISTED}")
    if "after" in query:
        after = next((index for index, item in enumerate(items) if item["id"] == query["after"]), None)
        if after is None:
            raise refuse(f"cannot use `after`: {query['after'][:80]!r} is none of the items")
        items = items[after + 1 :]
    shown = items[: int(limit)]
    ends = {"first_id": shown[0]["id"] if shown else None, "last_id": shown[-1]["id"] if shown else None}
    return {"object": "list", "data": shown, **ends, "has_more": len(items) > len(shown)}


def _show_item(item: Item) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(item)
    if isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        shown["content"] = [{"type": kind, "text": item.content}]
    return shown
