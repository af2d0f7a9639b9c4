"""litellm against two replicas that differ in the length of their context. argv: URL and model of the short one, then of the long one."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

SHORT, SHORT_MODEL, LONG, LONG_MODEL = sys.argv[1:5]
LONG_TALK = [{"role": "user", "content": "word " * 100}]
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def at(url: str, model: str) -> dict[str, Any]:
    return {"model": f"hosted_vllm/{model}", "api_base": url, "api_key": "unused", "num_retries": 0, "max_retries": 0}


def refused() -> dict[str, str]:
    try:
        litellm.completion(**at(SHORT, SHORT_MODEL), messages=LONG_TALK, max_tokens=4)
    except litellm.ContextWindowExceededError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": "none"}


def fallback() -> dict[str, Any]:
    """What the router makes of a conversation that the first model's context does not hold."""
    router = litellm.Router(
        model_list=[
            {"model_name": "short", "litellm_params": at(SHORT, SHORT_MODEL)},
            {"model_name": "long", "litellm_params": at(LONG, LONG_MODEL)},
        ],
        context_window_fallbacks=[{"short": ["long"]}],
        num_retries=0,
    )
    answer = router.completion(model="short", messages=LONG_TALK, max_tokens=4)
    return {"prompt_tokens": answer.usage.prompt_tokens, "completion_tokens": answer.usage.completion_tokens}


def streamed() -> dict[str, Any]:
    chunks = list(
        litellm.completion(**at(LONG, LONG_MODEL), messages=HI, max_tokens=8, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    usage = next(chunk.usage for chunk in chunks if getattr(chunk, "usage", None))
    whole = litellm.completion(**at(LONG, LONG_MODEL), messages=HI, max_tokens=8)
    return {"same": text == whole.choices[0].message.content, "completion_tokens": usage.completion_tokens}


def called() -> list[Any]:
    choice = litellm.completion(**at(LONG, LONG_MODEL), messages=HI, tools=[TOOL], tool_choice="required", max_tokens=200).choices[0]
    return [choice.finish_reason, *sorted({call.function.name for call in choice.message.tool_calls})]


def embedded() -> list[int]:
    answer = litellm.embedding(model=f"hosted_vllm/{LONG_MODEL}", input=["a", "b"], api_base=LONG, api_key="unused")
    return [len(item["embedding"]) for item in answer.data]


def main() -> None:
    found = {"refused": refused(), "fallback": fallback(), "streamed": streamed(), "called": called(), "embedded": embedded()}
    print(json.dumps(found))


main()
