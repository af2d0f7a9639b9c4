"""stamped: a request's submissions on its caller's terms. Called by `api/routes/completions.py` between parsing and the engine; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs
from pagoda_contracts.prefix import chat_text, normalise

from pagoda_daemon.api.access.caller import Terms
from pagoda_daemon.api.openai.requests import ChatRequest, GenerationRequest
from pagoda_daemon.api.routes.generation import Submission


def stamped(jobs: Sequence[Submission], request: GenerationRequest, terms: Terms, adapter: str = "") -> tuple[Submission, ...]:
    """As the engine is to see them, computed with the adapter of that digest. Prefixes name one prompt's beginnings: of several prompts
    they are nobody's."""
    if len(jobs) > 1 and terms.prefixes:
        terms = replace(terms, prefixes=())
    size = text_bytes(request) if terms.prefixes else None
    return tuple(replace(job, message=structs.replace(terms.stamp(job.message, size), adapter=adapter)) for job in jobs)


def text_bytes(request: GenerationRequest) -> int | None:
    """Of the text whose beginnings a gateway names (contracts, `prefix.py`); None where it came as token ids."""
    if isinstance(request, ChatRequest):
        return _size(chat_text((turn["role"], turn["content"]) for turn in request.turns()))
    first = request.prompts()[0]
    return _size(first) if isinstance(first, str) else None


def _size(text: str) -> int:
    return len(normalise(text).encode(errors="replace"))
