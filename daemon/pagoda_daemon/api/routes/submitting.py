"""A request becomes what the engine gets: prompt ids, limits, sampling, grammar. Pure; called by `completions`, `messages` and `texts`."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from pagoda_daemon.api.openai.reading import reading_of, tool_form
from pagoda_daemon.api.openai.requests import ChatRequest, GenerationRequest
from pagoda_daemon.api.openai.sampling import Wished, sampling_of
from pagoda_daemon.api.openai.structured import grammar_of
from pagoda_daemon.api.openai.tools import Toolbox
from pagoda_daemon.api.routes.generation import Submission
from pagoda_daemon.api.routes.prompts import check_ids, infilled, max_tokens, prompt_listed, room, truncated
from pagoda_daemon.core.messages import Ready, Submit
from pagoda_daemon.text.tokens import ModelText


def submissions(request: GenerationRequest, request_id: str, text: ModelText, limits: Ready) -> tuple[Submission, ...]:
    """One per prompt. Tokenises and checks against the engine's limits; BadRequest says by how many tokens it does not fit."""
    if isinstance(request, ChatRequest):
        ids = chat_ids(request, request.box, text, room(request, limits))
        return (_read_by(request, submission(request, request_id, ids, text, limits), text),)
    given = request.prompts()
    found = []
    for number, prompt in enumerate(given):
        special = request.add_special_tokens is not False
        written = infilled(prompt, request.suffix, text) if request.suffix else prompt
        ids = text.encode(written, room(request, limits), special=special) if isinstance(written, str) else written
        job = submission(request, request_id if len(given) == 1 else f"{request_id}-{number}", ids, text, limits)
        said = prompt if isinstance(prompt, str) and job.message.prompt == ids else text.decode(job.message.prompt)
        shown = said if request.echoes else None
        found.append(replace(job, echo=shown, first=number * job.message.n))
    return tuple(found)


def submission(request: GenerationRequest, request_id: str, prompt: tuple[int, ...], text: ModelText, limits: Ready) -> Submission:
    """Of one prompt."""
    prompt = truncated(prompt, request, limits)
    check_ids(prompt, limits.vocab_size)
    scored = 0 if request.listed is None and request.generated > (request.n or 1) else request.listed  # to find the best ones
    wished = Wished(max_tokens(request, len(prompt), limits.max_model_len), scored, prompt_listed(request))
    grammar = grammar_of(request, text.stop_ids)
    message = Submit(request_id, prompt, sampling_of(request, wished, text, limits.vocab_size), request.generated, grammar=grammar)
    skip, shows = request.skip_special_tokens, bool(request.include_stop_str_in_output)
    made = Submission(message, request.stops, answers=request.limit != 0, skip_special=skip, shows_stop=shows)
    return replace(made, shows_ids=bool(request.return_token_ids))


def chat_ids(request: ChatRequest, box: Toolbox | None, text: ModelText, context: int) -> tuple[int, ...]:
    """The prompt of a conversation with these tools: what is generated from, and what /tokenize counts."""
    if box is None:
        return text.encode_chat(request.turns(), context, request.shape)
    tool_form(text)  # a template that knows no tools is an error, instead of leaving them out
    return text.encode_chat(request.turns(), context, request.shape, box.for_template())


def _read_by(request: ChatRequest, job: Submission, text: ModelText) -> Submission:
    """Marks that the parser needs must not be left out of the text if they are special tokens."""
    reading = reading_of(request, job.message.prompt, job.message.grammar, text)
    message = structs.replace(job.message, grammar=reading.grammar)
    return replace(job, message=message, skip_special=job.skip_special and not reading.marks, reading=reading)
