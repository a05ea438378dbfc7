"""How does a request that is answered with text become jobs and the format of their answer? One handler for each API:
chats, completions, gaps, recordings, Messages, Responses and what is kept of these.
"""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llamactl.bodies import ChatBody, CompletionBody, GenerationBody, InfillBody, refuse
from llamactl.dialects import messages_chat, responses_chat
from llamactl.dialects.messages import MessagesBody
from llamactl.dialects.messages_chat import convert_messages
from llamactl.dialects.responses import ResponsesBody
from llamactl.instance.engine.jobs import Job
from llamactl.instance.http import transcriptions
from llamactl.instance.http.chat_format import ChatFormat
from llamactl.instance.http.completion_format import CompletionFormat
from llamactl.instance.http.formats import AnswerFormat
from llamactl.instance.http.messages import MessagesFormat
from llamactl.instance.http.native_format import NativeFormat
from llamactl.instance.http.openai_responses import ResponseSettings, ResponsesFormat
from llamactl.instance.http.parameters import choose_quiet_s
from llamactl.instance.http.requests import Handler, RequestReader, answer_json, name_errors, stay
from llamactl.instance.http.responses import StreamedText, WholeText
from llamactl.instance.http.service import Service
from llamactl.instance.http.stored import ResponseStore, list_input


class Generations:
    """Handlers by their words of `endpoints`."""

    def __init__(self, reader: RequestReader, store: ResponseStore) -> None:
        self._reader = reader
        self._responses = store
        self.handlers: dict[str, Handler] = {
            "chat": self._answer_chat,
            "completion": self._answer_completion,
            "native_completion": self._answer_native,
            "infill": self._answer_infill,
            "transcription": self._answer_transcription,
            "messages": self._answer_messages,
            "responses": self._answer_responses,
            "response": self._tell_response,
            "response_input": self._list_response_input,
        }

    async def _answer_chat(self, request: Request) -> Any:
        service, body = await self._reader.read(request, ChatBody)
        jobs, options = await stay(request, service.submit_chat(body))
        return _choose_response(service, jobs, ChatFormat(options), body)

    async def _answer_completion(self, request: Request) -> Any:
        service, body = await self._reader.read(request, CompletionBody)
        jobs, options = await stay(request, service.submit_completion(body))
        return _choose_response(service, jobs, CompletionFormat(options), body)

    async def _answer_native(self, request: Request) -> Any:
        service, body = await self._reader.read(request, CompletionBody)
        jobs, options = await stay(request, service.submit_completion(body))
        return _choose_response(service, jobs, NativeFormat(options), body)

    async def _answer_infill(self, request: Request) -> Any:
        service, body = await self._reader.read(request, InfillBody)
        jobs, options = await stay(request, service.submit_infill(body))
        return _choose_response(service, jobs, NativeFormat(options), body)

    async def _answer_transcription(self, request: Request) -> Any:
        service = self._reader.require_service()
        fields = transcriptions.parse_form(request.headers.get("content-type", ""), await request.body())
        self._reader.fields.compare(fields, transcriptions.KNOWN)
        chat = transcriptions.make_chat(fields)
        jobs, options = await stay(request, name_errors(service.submit_chat(chat), transcriptions.FIELDS))
        return _choose_response(service, jobs, transcriptions.TranscriptionFormat(options), chat)

    async def _answer_messages(self, request: Request) -> Any:
        service, body = await self._reader.read(request, MessagesBody)
        chat = await service.later_system.settle(convert_messages(body))
        jobs, options = await stay(request, name_errors(service.submit_chat(chat), messages_chat.FIELDS))
        return _choose_response(service, jobs, MessagesFormat(options, body), chat)

    async def _answer_responses(self, request: Request) -> Any:
        service, body = await self._reader.read(request, ResponsesBody)
        conversion = self._responses.convert(body)
        chat = await service.later_system.settle(conversion.chat)
        jobs, options = await stay(request, name_errors(service.submit_chat(chat), responses_chat.FIELDS))
        keep = None if body.store is False else self._responses.make_keep(body, conversion, len(await request.body()))
        answer_format = ResponsesFormat(options, ResponseSettings(body, conversion, service.sampling, keep))
        return _choose_response(service, jobs, answer_format, chat)

    async def _tell_response(self, request: Request) -> Response:
        response_id = _read_response_id(request)
        if request.method == "DELETE":
            self._responses.remove(response_id)
            return answer_json({"id": response_id, "object": "response", "deleted": True})
        if request.query_params.get("stream", "false") != "false":
            raise refuse("cannot use `stream`: what is kept of a response is its end")
        return answer_json(self._responses.require(response_id).response)

    async def _list_response_input(self, request: Request) -> Response:
        stored = self._responses.require(_read_response_id(request))
        return answer_json(list_input(stored, request.query_params))


def _read_response_id(request: Request) -> str:
    return f"resp_{request.path_params['rest']}"


def _choose_response(
    service: Service, jobs: Sequence[Job], answer_format: AnswerFormat, body: GenerationBody
) -> StreamedText | WholeText:
    if body.stream:
        return StreamedText(jobs, service.engine.cancel, answer_format, choose_quiet_s(body))
    return WholeText(jobs, service.engine.cancel, answer_format)
