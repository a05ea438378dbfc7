"""How does a handler get the model and the body of its request, and what has its answer in common with all others'?"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from llamactl.bodies import parse_body
from llamactl.dialects.common import rename_fields
from llamactl.errors import LlamactlError
from llamactl.instance.http.formats import encode_json
from llamactl.instance.http.responses import wait_for_disconnect
from llamactl.instance.http.service import Service
from llamactl.instance.http.unknown_fields import FieldWatch

_T = TypeVar("_T")
Handler = Callable[[Request], Coroutine[Any, Any, Any]]


class RequestReader:
    """`require_service` raises LlamactlError(SHUTTING_DOWN) while there is no model."""

    def __init__(self, require_service: Callable[[], Service], fields: FieldWatch) -> None:
        self.require_service = require_service
        self.fields = fields

    async def read(self, request: Request, kind: type[_T]) -> tuple[Service, _T]:
        """Raises LlamactlError: there is no model, or (INVALID_REQUEST, with the field) the body is none of `kind`."""
        service = self.require_service()
        data = await request.body()
        body = parse_body(data, kind)
        self.fields.look(data, kind)
        return service, body


async def stay(request: Request, submitting: Coroutine[Any, Any, _T]) -> _T:
    """The result, unless the client leaves first: what is not submitted by then never is."""
    task = asyncio.ensure_future(submitting)
    watching = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((task, watching), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watching.cancel()


async def name_errors(answering: Coroutine[Any, Any, _T], fields: dict[str, str]) -> _T:
    """What is said to a chat that came in other words. Errors name its fields as the client does."""
    try:
        return await answering
    except LlamactlError as error:
        raise rename_fields(error, fields) from None


def answer_json(value: Any, status: int = 200) -> Response:
    """Make a whole response with a JSON body."""
    return Response(encode_json(value), status_code=status, media_type="application/json; charset=utf-8")
