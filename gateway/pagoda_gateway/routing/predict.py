"""Predict: when a request would get its first token at an endpoint. Pure; by the endpoint's own model of a step and its queue.

A step takes a base, so much per token and so much per row. Before the first token comes, the endpoint computes the prompts that were there
before, and what it does not have in its cache of this one. If all rows are taken, an answer has to end first.
"""

from __future__ import annotations

from typing import Final

from pagoda_contracts.prefix import TEXT_CHUNK_BYTES

from pagoda_gateway.routing.affinity import resident_chunks
from pagoda_gateway.routing.endpoint import Endpoint, Frame, load
from pagoda_gateway.routing.request import RoutingRequest

# The gateway has no tokenizer. English text has about four bytes per token.
BYTES_PER_TOKEN: Final = 4
_CHUNK_TOKENS: Final = TEXT_CHUNK_BYTES // BYTES_PER_TOKEN
# How long an answer is taken to be, when a request waits for one to end.
_ANSWER_TOKENS: Final = 64


def ttft_s(endpoint: Endpoint, request: RoutingRequest) -> float:
    """Returns the predicted seconds until the first token; 0 if the endpoint has not said how long its steps take. An endpoint that is
    crowded gets no credit for what it has in its cache."""
    frame = endpoint.frame
    if frame is None or not frame.step_token_us:
        return 0.0
    own = request.prompt_tokens if endpoint.name in request.crowded else missed_tokens(endpoint, request)
    tokens = frame.waiting_tokens + frame.prefill_tokens + endpoint.sent_tokens + own
    return (_decode_us(frame) + frame.step_token_us * tokens + _row_us(endpoint, frame)) / 1e6


def missed_tokens(endpoint: Endpoint, request: RoutingRequest) -> int:
    """Returns how many tokens of a prompt the endpoint has to compute, because they are not in its cache."""
    return max(0, request.prompt_tokens - resident_chunks(endpoint, request.prefix_hashes) * _CHUNK_TOKENS)


def _decode_us(frame: Frame) -> float:
    return frame.step_base_us + frame.step_row_us * frame.running


def _row_us(endpoint: Endpoint, frame: Frame) -> float:
    """Returns how long it takes until enough answers have ended for a row to be free."""
    over = load(endpoint) + 1 - frame.max_concurrency if frame.max_concurrency else 0
    return max(0, over) * _ANSWER_TOKENS * _decode_us(frame) / max(1, frame.max_concurrency)
