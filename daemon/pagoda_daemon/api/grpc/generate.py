"""Inference.Generate: tokens in, tokens out, for gateways. Made by `front.py`.

A stream that broke elsewhere goes on here: what was already said comes as `resumed_tokens`, counts as this answer's own (seed, penalties,
limits), and is not said again. Accepted comes with the first token, so that until then the gateway may ask another replica; whatever
fails is a Failed with a code and whether another replica may do better. A caller who leaves ends his request.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from msgspec import structs
from pagoda_contracts.names import (
    GRPC_GENERATE,
    HEADER_CACHE_SALT,
    HEADER_PREFIX_HASHES,
    HEADER_PRIORITY,
    HEADER_TENANT,
    HEADER_TIER,
    HEADER_WEIGHT,
)
from pagoda_contracts.pb import inference_pb2 as pb
from pagoda_contracts.prefix import HASH_BYTES, to_header

from pagoda_daemon.api.access.caller import Principal, Terms, caller, deadline_at
from pagoda_daemon.api.access.pins import pinning
from pagoda_daemon.api.grpc.server import Context, Method
from pagoda_daemon.api.openai.errors import body_of, retryable
from pagoda_daemon.api.openai.sampling import MAX_IDS, check_ids, check_numbers
from pagoda_daemon.api.routes.admission import Admission, awake
from pagoda_daemon.api.routes.ends import checked_reason
from pagoda_daemon.api.routes.generation import Generator
from pagoda_daemon.api.routes.preparing import in_time
from pagoda_daemon.core.errors import BadRequest, DaemonError, context_exceeded
from pagoda_daemon.core.messages import Ready, RowOutput, Submit
from pagoda_daemon.core.sampling import NUMBERS, Sampling
from pagoda_daemon.engine.stream import Stream
from pagoda_daemon.metrics.records import Record

log = structlog.get_logger()

_REASONS: Final = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}


@dataclass(frozen=True)
class GenerateService:
    """`served_names` are what `model` may be."""

    admission: Admission
    generator: Generator
    served_names: tuple[str, ...]

    def method(self) -> Method:
        return Method(GRPC_GENERATE, pb.GenerateRequest, stream=self.generate)

    async def generate(self, principal: Principal, request: pb.GenerateRequest, context: Context) -> AsyncGenerator[pb.GenerateResponse]:
        """The gRPC method."""
        try:
            with self.admission.reading() as hold, self.admission.admit(), pinning(self.admission.adapters) as pins:
                hold(size := request.ByteSize())
                arrived = time.monotonic()
                limits, ends = self.admission.limits_of(request.model, self.served_names), self.generator.text.stop_ids
                terms = terms_of(principal, request, arrived, context.time_remaining())

                async def digest() -> str:
                    return pins.digest_of(request.model, self.served_names)

                adapter = await awake(self.admission, terms.deadline_ms, digest)
                making = self.admission.preparing.run(size, lambda: submit_of(request, limits, ends))
                message = structs.replace(terms.stamp(await in_time(terms.deadline_ms, making)), adapter=adapter)
                if len(message.resumed) >= message.sampling.max_tokens:
                    yield _accepted(len(message.prompt), 0)
                    yield _finished("length", len(message.resumed))
                    return
                sent = time.monotonic()
                stream = self.generator.engine.submit(message)
                async for event in self._events(message, stream, self.generator.counts.open(message, arrived, sent)):
                    yield event
        except DaemonError as error:
            reply = body_of(error).error
            log.info("generate_failed", request_id=request.request_id[:64], code=reply.code)
            yield pb.GenerateResponse(failed=pb.Failed(code=reply.code or "", message=reply.message, retryable=retryable(error)))

    async def _events(self, message: Submit, stream: Stream, record: Record) -> AsyncGenerator[pb.GenerateResponse]:
        """Until its end; if it is left early, the engine is asked to stop."""
        counts, engine = self.generator.counts, self.generator.engine
        said, reason = 0, None
        rows: deque[RowOutput] = deque()
        try:
            while reason is None:
                rows = rows or deque(await stream.take())
                row = rows.popleft()
                if row.life is not None or row.finish_reason is not None:
                    counts.hear(record, row, time.monotonic())
                reason = checked_reason(row)
                if not said:
                    yield _accepted(len(message.prompt), _cached(row))
                if row.token_ids:
                    yield _tokens(len(message.resumed) + said, row.token_ids)
                said += len(row.token_ids)
            yield _finished(reason, len(message.resumed) + said)
        except DaemonError:
            record.fail()
            raise
        finally:
            engine.close_stream(message.request_id, finished=reason is not None)
            self._count(record, reason, said)

    def _count(self, record: Record, reason: str | None, said: int) -> None:
        if reason is not None:
            record.end(0, reason, said)
        else:
            record.completion_tokens += said
        self.generator.counts.close(record, time.monotonic())


def submit_of(request: pb.GenerateRequest, limits: Ready, stop_ids: Sequence[int]) -> Submit:
    """Checked against the model; BadRequest names what does not fit. Its id is made here: what a caller calls it is for his own log."""
    # By their number first: to look at each of the 8 million ids of a message would hold up the loop for seconds.
    known, more = len(request.prompt_tokens), len(request.resumed_tokens)
    if not known:
        raise BadRequest("prompt_tokens is empty", "prompt_tokens")
    context = limits.max_model_len - known
    wanted = request.sampling.max_tokens or max(1, context)
    if wanted > context or more > wanted:
        said = f"prompt_tokens has {known}, sampling.max_tokens is {wanted}, and {more} of them are resumed"
        raise context_exceeded(limits.max_model_len, said, "sampling.max_tokens" if context > 0 else "prompt_tokens")
    prompt, resumed = tuple(request.prompt_tokens), tuple(request.resumed_tokens)
    check_ids("prompt_tokens", prompt, limits.vocab_size)
    check_ids("resumed_tokens", resumed, limits.vocab_size)
    return Submit(secrets.token_hex(16), prompt, sampling_of(request.sampling, wanted, limits.vocab_size, stop_ids), resumed=resumed)


def sampling_of(given: pb.Sampling, max_tokens: int, vocab_size: int, stop_ids: Sequence[int]) -> Sampling:
    """0 means not said; ranges are the HTTP API's."""
    if len(given.stop_token_ids) > MAX_IDS:
        raise BadRequest(f"stop_token_ids must have at most {MAX_IDS} entries, got {len(given.stop_token_ids)}", "stop_token_ids")
    ids = tuple(given.stop_token_ids)
    check_ids("stop_token_ids", ids, vocab_size)
    said: dict[str, Any] = {name: value for name in NUMBERS if (value := getattr(given, name))}
    check_numbers(said)
    return Sampling(
        **said,
        max_tokens=max_tokens,
        seed=given.seed if given.has_seed else None,
        stop_token_ids=ids if given.ignore_eos else (*stop_ids, *ids),
    )


def terms_of(principal: Principal, request: pb.GenerateRequest, arrived: float, call_s: float | None) -> Terms:
    """As of an HTTP request with the same words in its headers. The earlier of the request's deadline and the call's own counts."""
    if any(len(one) != HASH_BYTES for one in request.prefix_hashes):
        raise BadRequest(f"prefix_hashes must have {HASH_BYTES} bytes each", "prefix_hashes")
    said = {
        HEADER_TENANT: request.tenant,
        HEADER_WEIGHT: repr(request.weight or 1.0),
        HEADER_TIER: request.tier or "interactive",
        HEADER_PRIORITY: str(request.priority),
        HEADER_CACHE_SALT: request.cache_salt,
        HEADER_PREFIX_HASHES: to_header(request.prefix_hashes),
    }
    limits = [left for left in (request.deadline_ms, None if call_s is None else int(call_s * 1000)) if left]
    terms = caller(principal, said, arrived).terms
    return terms.until(deadline_at(min(limits), arrived)) if limits else terms


def _cached(row: RowOutput) -> int:
    return row.life.cached_tokens if row.life else 0


def _accepted(prompt: int, cached: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(accepted=pb.Accepted(prompt_tokens=prompt, cached_tokens=cached))


def _tokens(index: int, ids: Sequence[int]) -> pb.GenerateResponse:
    return pb.GenerateResponse(tokens=pb.Tokens(index=index, ids=ids))


def _finished(reason: str, tokens: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(finished=pb.Finished(reason=_REASONS[reason], completion_tokens=tokens))
