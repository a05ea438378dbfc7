"""What does a chat cost that is far too long? An answer that says so, and afterwards nothing."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from llamactl.instance.chat.layer import ApplyRequest
from llamactl.instance.http.chats import LONG_CHAT_CHARS, LONG_CHAT_MESSAGES, is_long
from tests.socket.instance.harness import Child

CHAT = "/v1/chat/completions"
MIB = 1 << 20


def read_peak_bytes(child: Child) -> int:
    """The most memory that it has had."""
    status = Path(f"/proc/{child.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_long_chats_are_written_one_after_the_other(instance: Child) -> None:
    body = {"messages": [{"role": "user", "content": "hello " * (4 * MIB // 6)}], "max_tokens": 1}
    at_start = read_peak_bytes(instance)
    instance.request("POST", CHAT, body)
    alone = read_peak_bytes(instance)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: instance.request("POST", CHAT, body), range(8)))
    assert {status for status, _ in answers} == {400}
    assert {answer["error"]["type"] for _, answer in answers} == {"exceed_context_size_error"}
    # The bodies are all there at once; what is made of them is not.
    assert read_peak_bytes(instance) - alone < 0.65 * (alone - at_start)


def test_chat_of_many_messages_is_answered(instance: Child) -> None:
    messages = [{"role": ("user", "assistant")[number % 2], "content": "a"} for number in range(2001)]
    status, answer = instance.request("POST", CHAT, {"messages": messages, "max_tokens": 1})
    assert (status, answer["error"]["type"]) == (400, "exceed_context_size_error")


def test_long_is_what_has_many_messages_or_much_text() -> None:
    user = {"role": "user", "content": "x"}
    text = "x" * (LONG_CHAT_CHARS // 2 + 1)
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": text}}]}
    thought = {"role": "assistant", "content": [{"type": "text", "text": "x"}], "reasoning_content": text}
    result = {"role": "tool", "content": [{"type": "text", "text": text}]}
    for messages in ([user] * LONG_CHAT_MESSAGES, [call], [thought], [result], [call, user]):
        assert not is_long(ApplyRequest(messages=messages))
    for messages in ([user] * (LONG_CHAT_MESSAGES + 1), [call, thought], [thought, result], [result, call]):
        assert is_long(ApplyRequest(messages=messages))
