"""What must hold of a prompt: its length, its ids, and what is left for the answer. Pure; called by `generation`."""

from __future__ import annotations

from pagoda_daemon.api.openai.requests import MAX_BODY, ChatRequest, GenerationRequest
from pagoda_daemon.core.errors import BadRequest, context_exceeded, shown
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.text.tokens import ModelText


def room(request: GenerationRequest, limits: Ready) -> int:
    """Tokens that a prompt may have at a glance: any number if it is cut afterwards. `MAX_BODY` bounds it then."""
    return limits.max_model_len if request.truncate_prompt_tokens is None else MAX_BODY


def truncated(prompt: tuple[int, ...], request: GenerationRequest, limits: Ready) -> tuple[int, ...]:
    """The last `truncate_prompt_tokens` of a prompt; with -1 as many as the context holds beside the answer, as in vLLM."""
    most = request.truncate_prompt_tokens
    if most is None:
        return prompt
    if most == 0:
        raise BadRequest("truncate_prompt_tokens must be -1 or at least 1, got 0", "truncate_prompt_tokens")
    if most == -1:
        most = max(1, limits.max_model_len - max(1, request.limit or 1))
    return prompt[-most:]


def infilled(prompt: str | tuple[int, ...], suffix: str, text: ModelText) -> str:
    if not isinstance(prompt, str):
        raise BadRequest("suffix is accepted only with a prompt of text", "suffix")
    if text.infill is None:
        raise BadRequest("this model has no token for the text before a suffix; leave suffix out", "suffix", "unsupported_parameter")
    return text.infill.written(prompt, suffix)


def prompt_listed(request: GenerationRequest) -> int | None:
    """An echo with log-probabilities shows the prompt's, vLLM's own field may ask for more of them."""
    asked = (request.prompt_logprobs, request.listed if request.echoes else None)
    return max((one for one in asked if one is not None), default=None)


def check_ids(prompt: tuple[int, ...], vocab_size: int) -> None:
    if not prompt:
        raise BadRequest("the prompt has no tokens", "prompt")
    wrong = next((token for token in prompt if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise BadRequest(f"prompt holds token id {shown(wrong)}; token ids must be 0 to {vocab_size - 1}", "prompt")


def max_tokens(request: GenerationRequest, prompt: int, context: int) -> int:
    """How many may be generated at most; BadRequest names the field that asks for too much, the prompt's where that alone does."""
    asked, whose = request.limit, "messages" if isinstance(request, ChatRequest) else "prompt"
    subject = "the messages have" if whose == "messages" else "the prompt has"
    wished = context - prompt if asked is None else max(1, asked)
    if prompt >= context:
        said = f"{subject} {prompt} tokens. With one token of an answer that is {prompt + 1 - context} too many"
        raise context_exceeded(context, said, whose)
    if (over := prompt + wished - context) > 0:
        said = f"{subject} {prompt} tokens, and {request.limit_field or 'the answer'} is {wished}. Together that is {over} too many"
        raise context_exceeded(context, said, request.limit_field or whose)
    return wished
