"""How are requests for vectors and for ranks answered? All inputs of one request are one job."""

import base64
import itertools
import struct
from typing import Any

from starlette.requests import Request

from llamactl.bodies import EmbeddingBody, NativeEmbeddingBody, RerankBody
from llamactl.instance.engine.embed import normalize_as
from llamactl.instance.engine.jobs import EmbeddingRequest
from llamactl.instance.http.formats import format_ranking
from llamactl.instance.http.parameters import choose_norm
from llamactl.instance.http.requests import Handler, RequestReader
from llamactl.instance.http.responses import WholeEmbedding
from llamactl.instance.http.vector_jobs import submit_embedding, submit_ranking


class Vectors:
    """Handlers by their words of `endpoints`."""

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader
        self.handlers: dict[str, Handler] = {
            "embedding": self._answer_embedding,
            "native_embedding": self._answer_native_embedding,
            "ranking": self._answer_ranking,
        }

    async def _answer_embedding(self, request: Request) -> Any:
        service, body = await self._reader.read(request, EmbeddingBody)
        job, n_tokens = await submit_embedding(service, body)

        def format_body(vectors: list[list[float]]) -> dict[str, Any]:
            if body.dimensions is not None:
                # Models made for it have what matters first; a shortened vector gets the norm once more.
                vectors = [normalize_as(vector[: body.dimensions], choose_norm(body)) for vector in vectors]
            as_base64 = body.encoding_format == "base64"
            data = [
                {"object": "embedding", "index": index, "embedding": _encode_vector(vector) if as_base64 else vector}
                for index, vector in enumerate(vectors)
            ]
            usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
            return {"object": "list", "model": service.settings.name, "data": data, "usage": usage}

        return WholeEmbedding(job, service.engine.cancel, format_body)

    async def _answer_native_embedding(self, request: Request) -> Any:
        service, body = await self._reader.read(request, NativeEmbeddingBody)
        job, _ = await submit_embedding(
            service, EmbeddingBody(input=body.choose_texts(), embd_normalize=body.embd_normalize), by_token=True
        )

        def format_body(vectors: list[list[float]]) -> list[dict[str, Any]]:
            if service.embeds_tokens:
                assert isinstance(job.request, EmbeddingRequest)
                rest = iter(vectors)
                return [
                    {"index": index, "embedding": list(itertools.islice(rest, len(tokens)))}
                    for index, tokens in enumerate(job.request.inputs)
                ]
            return [{"index": index, "embedding": [vector]} for index, vector in enumerate(vectors)]

        return WholeEmbedding(job, service.engine.cancel, format_body)

    async def _answer_ranking(self, request: Request) -> Any:
        service, body = await self._reader.read(request, RerankBody)
        given = body.documents if body.documents is not None else body.texts or []
        documents = [document if isinstance(document, str) else document.text for document in given]
        job, n_tokens = await submit_ranking(service, body, documents)

        def format_body(scores: list[list[float]]) -> Any:
            return format_ranking(service.settings.name, body, documents, [values[0] for values in scores], n_tokens)

        return WholeEmbedding(job, service.engine.cancel, format_body)


def _encode_vector(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
