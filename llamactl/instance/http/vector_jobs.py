"""Which job is a request for vectors or for ranks, and when can it be none? All inputs of one request are one job."""

from collections.abc import Sequence

from llamactl.bodies import EmbeddingBody, RerankBody, refuse
from llamactl.instance.engine.embed import NO_NORM
from llamactl.instance.engine.jobs import EmbeddingRequest, Job
from llamactl.instance.http.parameters import choose_norm
from llamactl.instance.http.prompts import MAX_PROMPTS
from llamactl.instance.http.service import Service, refuse_length


async def submit_embedding(service: Service, body: EmbeddingBody, *, by_token: bool = False) -> tuple[Job, int]:
    """The job, and how many tokens its inputs have together. `by_token`: their vectors are an answer, too."""
    if not service.embeds:
        raise refuse(
            f"cannot make embeddings: {service.settings.name!r} generates text; set `pooling` in its configuration "
            "to use it for embeddings"
        )
    service.numbers.look(body.model, body.input)
    if service.pooling == "rank" or (service.embeds_tokens and not by_token):
        more = ", /embedding answers with one for each token" if service.embeds_tokens else ""
        raise refuse(f"cannot make embeddings: pooling {service.pooling!r} gives no vector for a text{more}")
    if body.encoding_format not in (None, "float", "base64"):
        raise refuse(f"cannot use `encoding_format`: {body.encoding_format[:40]!r} is neither float nor base64")
    if body.dimensions is not None and not 1 <= body.dimensions <= service.facts.n_embd:
        raise refuse(f"cannot use `dimensions`: {body.dimensions}, the model makes {service.facts.n_embd}")
    name = "input" if isinstance(body.input, list) else ""
    inputs = await service.prompts.read_inputs(body.input)
    return _submit_inputs(service, inputs, name, choose_norm(body))


async def submit_ranking(service: Service, body: RerankBody, documents: Sequence[str]) -> tuple[Job, int]:
    """The job, and how many tokens its inputs have together."""
    if not service.embeds or service.pooling != "rank":
        raise refuse(
            f"cannot rerank: {service.settings.name!r} is not made for it; a reranker's file names pooling `rank`, or "
            "its configuration does"
        )
    if not documents:
        raise refuse("cannot use `documents`: there are none")
    if len(documents) > MAX_PROMPTS:
        raise refuse(f"cannot use `documents`: {len(documents)}, at most {MAX_PROMPTS} are taken")
    pairs = [await service.prompts.pair(body.query, text, service.rerank_template) for text in documents]
    return _submit_inputs(service, pairs, "documents", NO_NORM)


def _submit_inputs(service: Service, inputs: list[list[int]], name: str, norm: int) -> tuple[Job, int]:
    """`name`: of the list that they are from; empty: there is but one."""
    for index, tokens in enumerate(inputs):
        if len(tokens) > service.n_ctx:
            raise refuse_length(len(tokens), service.n_ctx, f"{name}[{index}]" if name else "input")
    job = Job(EmbeddingRequest(inputs, norm))
    service.engine.submit(job)
    return job, sum(len(tokens) for tokens in inputs)
