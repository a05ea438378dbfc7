"""Which responses are kept, and what of them is told?"""

from typing import Any

import pytest

from llamactl.dialects.responses import Item, ResponsesBody
from llamactl.errors import LlamactlError
from llamactl.instance.http.stored import ResponseStore, StoredResponse, list_input


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make(name: str, n_bytes: int = 10) -> StoredResponse:
    item = Item(type="message", role="user", content=name, id=f"msg_{name}")
    return StoredResponse({"id": name}, (item,), (item,), n_bytes)


def fill(store: ResponseStore, names: str, n_bytes: int = 10) -> None:
    for name in names:
        store.add(make(name, n_bytes))


def list_kept(store: ResponseStore, names: str) -> str:
    """Those that are kept, looked at from the last one on, so that their order stays."""
    return "".join(name for name in names if store.find(name) is not None)


def test_longest_unused_are_forgotten_first() -> None:
    store = ResponseStore(max_responses=3)
    fill(store, "abc")
    assert store.find("a") is not None
    fill(store, "d")
    assert list_kept(store, "abcd") == "acd"


def test_size_is_bounded_whatever_comes() -> None:
    store = ResponseStore(max_bytes=25)
    fill(store, "abc")
    assert list_kept(store, "abc") == "bc"
    fill(store, "d", 26)
    assert list_kept(store, "abcd") == ""
    fill(store, "e")
    assert list_kept(store, "e") == "e"


def test_each_use_begins_its_time_anew() -> None:
    clock = Clock()
    store = ResponseStore(clock, kept_s=10)
    fill(store, "ab")
    clock.now_s = 9
    assert store.find("a") is not None
    clock.now_s = 10
    assert list_kept(store, "ab") == "a"
    clock.now_s = 25
    assert store.find("a") is None


def test_what_is_removed_is_gone() -> None:
    store = ResponseStore()
    fill(store, "a")
    store.remove("a")
    assert store.find_item("msg_a") is None
    with pytest.raises(LlamactlError, match="no response 'a' is kept") as gone:
        store.remove("a")
    assert gone.value.kind.http_status == 404


def follow(store: ResponseStore, previous: str | None, said: str, response_id: str) -> list[Any]:
    """One turn; the contents of the chat's messages."""
    body = ResponsesBody(input=said, previous_response_id=previous)
    conversion = store.convert(body)
    answer = Item(type="message", role="assistant", content=f"re {said}", id=f"msg_{response_id}")
    store.make_keep(body, conversion, 100)({"id": response_id}, [answer])
    return [message.content for message in conversion.chat.messages]


def test_conversation_goes_on_also_when_its_beginning_is_forgotten() -> None:
    store = ResponseStore(max_responses=1)
    assert follow(store, None, "one", "r1") == ["one"]
    assert follow(store, "r1", "two", "r2") == ["one", "re one", "two"]
    assert store.find("r1") is None
    assert follow(store, "r2", "three", "r3") == ["one", "re one", "two", "re two", "three"]


def test_one_answer_can_be_gone_on_with_twice() -> None:
    store = ResponseStore()
    follow(store, None, "one", "r1")
    follow(store, "r1", "two", "r2")
    assert follow(store, "r1", "other", "r3") == ["one", "re one", "other"]


def test_items_can_be_referred_to() -> None:
    store = ResponseStore()
    follow(store, None, "one", "r1")
    body = ResponsesBody(input=[Item(type="item_reference", id="msg_r1"), Item(role="user", content="x")])
    assert [message.content for message in store.convert(body).chat.messages] == ["re one", "x"]


def test_what_is_not_kept_is_named() -> None:
    with pytest.raises(LlamactlError, match="cannot use `previous_response_id`: no response 'gone' is kept"):
        ResponseStore().convert(ResponsesBody(input="x", previous_response_id="gone"))


def test_input_is_listed_in_pages() -> None:
    items = tuple(Item(type="message", role="user", content=str(n), id=f"m{n}") for n in range(5))
    stored = StoredResponse({"id": "r"}, items, items, 0)

    def ids(**query: str) -> list[str]:
        return [item["id"] for item in list_input(stored, query)["data"]]

    assert ids() == ["m4", "m3", "m2", "m1", "m0"]
    assert ids(order="asc", limit="2") == ["m0", "m1"]
    assert ids(order="asc", limit="2", after="m1") == ["m2", "m3"]
    page = list_input(stored, {"limit": "2"})
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("m4", "m3", True)
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "4"}]
    for wrong in ({"order": "up"}, {"limit": "0"}, {"limit": "x"}, {"limit": "101"}, {"after": "m9"}):
        with pytest.raises(LlamactlError) as refused:
            list_input(stored, wrong)
        assert refused.value.kind.http_status == 400
