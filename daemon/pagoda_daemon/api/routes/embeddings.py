"""/v1/embeddings: the model's states over a prompt, pooled into one vector of length 1. The decoder itself is asked, no other model.

A prompt goes through the engine like any other, its states are summed where they are computed, and the token that follows it is dropped.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec import structs
from pagoda_contracts.names import HEADER_USAGE
from pagoda_contracts.usage import to_header
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda_daemon.api.access.caller import Terms
from pagoda_daemon.api.openai import fields, requests
from pagoda_daemon.api.openai.errors import JSON
from pagoda_daemon.api.openai.replies import PromptDetails
from pagoda_daemon.api.openai.sampling import check_ids, in_range
from pagoda_daemon.api.routes.admission import Admission, admitted
from pagoda_daemon.api.routes.allowance import allowed, used, within
from pagoda_daemon.api.routes.completions import Context
from pagoda_daemon.api.routes.generation import Generator, Submission
from pagoda_daemon.api.routes.preparing import in_time
from pagoda_daemon.api.routes.usages import Usages
from pagoda_daemon.core.errors import BadRequest, context_exceeded
from pagoda_daemon.core.messages import Ready, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.text.tokens import ModelText

MAX_INPUTS: Final = 2048  # OpenAI's
MAX_DIMENSIONS: Final = 65536  # the model's own number is the limit, and known when the vector is


class EmbeddingRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/embeddings. `pooling`: the state of the last token, or the mean of all. `dimensions` keeps that many numbers of a vector,
    the first ones, and makes its length 1 again."""

    model: str
    input: str | list[int | str | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    pooling: Literal["last", "mean"] = "last"


class Embedding(msgspec.Struct, frozen=True):
    """Of one input; base64 is of little-endian fp32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class EmbeddingReply(msgspec.Struct, frozen=True):
    """One vector for each input, in their order."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


@dataclass(frozen=True)
class Embed:
    """The endpoint."""

    admission: Admission
    generator: Generator
    served_names: tuple[str, ...]

    def __post_init__(self) -> None:
        fields.learn(EmbeddingRequest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await admitted(self.admission, scope, receive, lambda body: self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        context = Context.of(scope)
        request, jobs = await in_time(
            context.terms.deadline_ms, self.admission.preparing.run(len(body), lambda: self._prepare(body, context))
        )
        scope["state"]["model"] = request.model
        usages, found = Usages(jobs), {}
        async with self.generator.answering(jobs, scope["state"]["arrived"]) as answers:
            async for several in answers:
                for delta in several:
                    usages.note(delta)
                    found[delta.choice] = delta.embedding
        size = sum(len(vector) for vector in found.values())
        content = await self.admission.preparing.run(size, partial(_whole, request, [found[index] for index in range(len(jobs))], usages))
        headers = {HEADER_USAGE: to_header(used(usages))} if context.terms.allowance.reports else None
        await Response(content, headers=headers, media_type=JSON)(scope, receive, send)

    def _prepare(self, body: bytes, context: Context) -> tuple[EmbeddingRequest, tuple[Submission, ...]]:
        request = fields.typed(body, EmbeddingRequest, context.ignored)
        limits = within(self.admission.limits_of(request.model, self.served_names), context.terms.allowance)
        adapter = context.pins.digest_of(request.model, self.served_names)
        jobs = submissions(request, context.request_id, self.generator.text, limits, replace(context.terms, prefixes=()))
        jobs = tuple(replace(job, message=structs.replace(job.message, adapter=adapter)) for job in jobs)
        return request, tuple(allowed(jobs, context.terms.allowance, bounded=True))


def submissions(request: EmbeddingRequest, request_id: str, text: ModelText, limits: Ready, terms: Terms) -> tuple[Submission, ...]:
    """One for each input; BadRequest names what is wrong with which."""
    in_range("dimensions", request.dimensions, 1, MAX_DIMENSIONS)
    inputs = requests.prompts_of(request.input, "input")
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise BadRequest(f"input must have 1 to {MAX_INPUTS} entries, got {len(inputs)}", "input")
    sampling = Sampling(1, pooling=request.pooling)
    found = []
    for index, given in enumerate(inputs):
        ids = text.encode(given, limits.max_model_len, param="input") if isinstance(given, str) else given
        _check(index, ids, limits)
        message = terms.stamp(Submit(f"{request_id}-{index}" if len(inputs) > 1 else request_id, ids, sampling))
        found.append(Submission(message, answers=False, first=index))
    return tuple(found)


def _check(index: int, ids: Sequence[int], limits: Ready) -> None:
    if not ids:
        raise BadRequest(f"input {index} has no tokens", "input")
    check_ids("input", ids, limits.vocab_size)
    if (over := len(ids) + 1 - limits.max_model_len) > 0:
        raise context_exceeded(limits.max_model_len, f"input {index} has {len(ids)} tokens, and one follows it: {over} too many", "input")


def _whole(request: EmbeddingRequest, vectors: Sequence[bytes], usages: Usages) -> bytes:
    used = usages.usage()
    cut = [_shortened(vector, request.dimensions) for vector in vectors]
    data = [Embedding(index, _written(vector, request.encoding_format)) for index, vector in enumerate(cut)]
    usage = EmbeddingUsage(used.prompt_tokens, used.prompt_tokens, used.prompt_tokens_details)
    return msgspec.json.encode(EmbeddingReply(data, request.model, usage))


def _shortened(vector: bytes, dimensions: int | None) -> bytes:
    """Little-endian fp32 in and out."""
    if dimensions is None:
        return vector
    numbers = np.frombuffer(vector, "<f4")
    if dimensions > len(numbers):
        raise BadRequest(f"dimensions must be between 1 and {len(numbers)} for this model, got {dimensions}", "dimensions")
    kept = numbers[:dimensions]
    length = float(np.linalg.norm(kept))
    return (kept / length if length else kept).astype("<f4").tobytes()


def _written(vector: bytes, form: str | None) -> list[float] | str:
    return b64encode(vector).decode() if form == "base64" else np.frombuffer(vector, "<f4").tolist()
