"""Does a request reach its instance and its answer the client, byte for byte, as it comes?"""

from typing import Any

CHAT = "/v1/chat/completions"


def test_request_reaches_the_instance_and_its_answer_the_client(stage: Any) -> None:
    async def scenario(world: Any) -> None:
        instance = await world.add_model("a")
        client = await world.connect()
        client.writer.write(
            b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: example\r\nX-Mine: 1\r\nConnection: X-Hop\r\nX-Hop: secret\r\n"
            b'Content-Length: 23\r\n\r\n{"model":"a","n":[1,2]}'
        )
        call = await instance.call()
        assert (call.request.method, call.request.target) == ("POST", "/v1/chat/completions?x=1")
        assert call.request.body == b'{"model":"a","n":[1,2]}'
        assert call.request.headers == [("Host", "example"), ("X-Mine", "1"), ("Content-Length", "23")]
        call.answer(
            b'{"ok":1}', "Content-Type: application/json", "Keep-Alive: timeout=5", "X-Its: 2", status="201 Made"
        )
        response = await client.read_response()
        assert response.status == 201
        assert response.body == b'{"ok":1}'
        assert response.headers == {"content-type": "application/json", "x-its": "2", "content-length": "8"}

    stage(scenario)
