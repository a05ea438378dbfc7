"""How are requests answered that need a model's vocabulary and template alone? Tokens, prompts, and what they count."""

from starlette.requests import Request
from starlette.responses import Response

from llamactl.bodies import ChatBody, DetokenizeBody, TemplateBody, TokenizeBody
from llamactl.dialects import messages_chat, responses, responses_chat
from llamactl.dialects.messages import CountBody
from llamactl.dialects.messages_chat import convert_messages
from llamactl.instance.http.requests import Handler, RequestReader, answer_json, name_errors, stay
from llamactl.instance.http.service import Service
from llamactl.instance.http.stored import ResponseStore


class Texts:
    """Handlers by their words of `endpoints`."""

    def __init__(self, reader: RequestReader, store: ResponseStore) -> None:
        self._reader = reader
        self._responses = store
        self.handlers: dict[str, Handler] = {
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "template": self._apply_template,
            "count_chat": self._count_chat,
            "count_messages": self._count_messages,
            "count_responses": self._count_responses,
        }

    async def _tokenize(self, request: Request) -> Response:
        service, body = await self._reader.read(request, TokenizeBody)
        parts = [body.content] if isinstance(body.content, str) else body.content
        tokenizing = service.prompts.tokenize_parts(
            parts, add_special=body.add_special, parse_special=body.parse_special
        )
        tokens = await stay(request, tokenizing)
        if not body.with_pieces:
            return answer_json({"tokens": tokens})
        return answer_json({"tokens": [{"id": token, "piece": _show_piece(service, token)} for token in tokens]})

    async def _detokenize(self, request: Request) -> Response:
        service, body = await self._reader.read(request, DetokenizeBody)
        service.prompts.check_tokens(body.tokens)
        return answer_json({"content": service.vocabulary.detokenize(body.tokens)})

    async def _apply_template(self, request: Request) -> Response:
        service, body = await self._reader.read(request, TemplateBody)
        return answer_json({"prompt": await stay(request, service.write_prompt(body.as_chat()))})

    async def _count_chat(self, request: Request) -> Response:
        service, body = await self._reader.read(request, ChatBody)
        n_tokens = await stay(request, service.count_tokens(body))
        return answer_json({"object": "response.input_tokens", "input_tokens": n_tokens})

    async def _count_messages(self, request: Request) -> Response:
        service, body = await self._reader.read(request, CountBody)
        chat = await service.later_system.settle(convert_messages(body))
        counting = name_errors(service.count_tokens(chat), messages_chat.FIELDS)
        return answer_json({"input_tokens": await stay(request, counting)})

    async def _count_responses(self, request: Request) -> Response:
        service, body = await self._reader.read(request, responses.CountBody)
        chat = await service.later_system.settle(self._responses.convert(body).chat)
        n_tokens = await stay(request, name_errors(service.count_tokens(chat), responses_chat.FIELDS))
        return answer_json({"object": "response.input_tokens", "input_tokens": n_tokens})


def _show_piece(service: Service, token: int) -> str | list[int]:
    """Text, or the bytes where they are no text, as llama-server answers."""
    piece = service.vocabulary.piece(token, special=True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
