"""Engine: what a notebook or an evaluation calls. Blocks until its answers are there; everything that runs is in `session`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pagoda_contracts.launch import DaemonConfig

from pagoda_daemon.api.access.caller import PLAIN
from pagoda_daemon.api.openai import fields
from pagoda_daemon.api.openai.requests import MAX_BODY, ChatRequest, CompletionRequest
from pagoda_daemon.api.routes.embeddings import EmbeddingRequest, submissions
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.offline.answering import Answered, answer_all
from pagoda_daemon.offline.own_engine import OwnEngine, config_of
from pagoda_daemon.offline.progress import bar
from pagoda_daemon.offline.results import Result, result_of
from pagoda_daemon.offline.sampling import Ask, Messages, Prompt, Sampling, of_chat, of_prompt, of_score
from pagoda_daemon.offline.session import Backing, Session
from pagoda_daemon.text.tokens import ModelText

R = TypeVar("R")
Samplings = Sampling | Sequence[Sampling]
_DEFAULT: Final = Sampling()


class Engine:
    """A model, loaded, with an engine process of its own. `model`: a directory, org/name, or an address that `pagoda-daemon serve` takes.
    `fields`: those of the `engine` section of a DaemonConfig (`dtype="float32"`, `max_model_len=4096`), and `revision`, `download_dir`,
    `chat_template`.

    Raises errors of one tree, `pagoda_daemon.core.errors.DaemonError`: ModelRejected, ConfigRejected, BadRequest, EngineDied and others.
    Ctrl-C ends a call, not the engine.
    """

    def __init__(self, model: str | Path, **fields: Any) -> None:
        self._stand_on(OwnEngine(config_of(model, fields)))

    @classmethod
    def of(cls, config: DaemonConfig) -> Engine:
        """By a whole DaemonConfig. What it says of ports and callers has no effect."""
        return cls.on(OwnEngine(config))

    @classmethod
    def on(cls, backing: Backing) -> Engine:
        """By an engine that runs elsewhere."""
        made = cls.__new__(cls)
        made._stand_on(backing)  # noqa: SLF001
        return made

    def _stand_on(self, backing: Backing) -> None:
        for kind in (CompletionRequest, ChatRequest):
            fields.learn(kind)
        self._session = Session(backing)
        self._close = weakref.finalize(self, self._session.close)

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._session.core.limits.max_model_len

    @property
    def text(self) -> ModelText:
        """The model's tokenizer and chat template."""
        return self._session.core.text

    def generate(self, prompts: Prompt | Sequence[Prompt], sampling: Samplings = _DEFAULT, *, progress: bool | None = None) -> list[Result]:
        """One result for each prompt, in their order. A prompt is text or token ids; `sampling` is for all prompts or one for each. A
        progress bar is shown for several prompts on a terminal, or as `progress` says."""
        given = _prompts(prompts)
        asks = [of_prompt(prompt, one) for prompt, one in zip(given, _each(sampling, len(given)), strict=True)]
        return self._results(asks, progress)

    def chat(
        self, messages: Messages | Sequence[Messages], sampling: Samplings = _DEFAULT, *, progress: bool | None = None, **shape: Any
    ) -> list[Result]:
        """The same for one conversation or several, written by the model's chat template. `shape`: the fields of a chat request that
        change how it is written (`chat_template_kwargs`, `continue_final_message`, `add_generation_prompt`, `reasoning_effort`)."""
        given = _conversations(messages)
        asks = [of_chat(one, how, shape) for one, how in zip(given, _each(sampling, len(given)), strict=True)]
        return self._results(asks, progress)

    def score(self, prompts: Prompt | Sequence[Prompt], *, top: int = 0, progress: bool | None = None) -> list[Result]:
        """Log-probabilities of the prompts' own tokens (`prompt_logprobs`), with the `top` best at each place. No answer is generated. A
        prompt may have one token less than the context."""
        return self._results([of_score(prompt, top) for prompt in _prompts(prompts)], progress)

    def embed(self, prompts: Prompt | Sequence[Prompt], *, pooling: str = "last", progress: bool | None = None) -> NDArray[np.float32]:
        """One vector of length 1 for each prompt: the state of its last token, or the mean of all (`pooling="mean"`)."""
        asks = [_embedding(prompt, pooling) for prompt in _prompts(prompts)]
        return np.stack(self._run(asks, _vector, progress))

    def tokenize(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Ids of a text of any length, with the special ids that the tokenizer adds to a prompt, or without them."""
        return self.text.encode(text, MAX_BODY, special=special)

    def close(self) -> None:
        """Ends the engine. Idempotent. Nothing is left: no process, no thread, no file."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _results(self, asks: Sequence[Ask], progress: bool | None) -> list[Result]:
        spell = self.text.spell
        return self._run(asks, lambda found: result_of(found.job, found.deltas, spell), progress)

    def _run(self, asks: Sequence[Ask], made: Callable[[Answered], R], progress: bool | None) -> list[R]:
        if not asks:
            return []
        with bar(len(asks), progress) as done:
            return self._session.call(lambda core: answer_all(core, asks, made, done))


def _prompts(given: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A string or a list of ids is one prompt."""
    if isinstance(given, str) or any(isinstance(one, int) for one in given):
        return [given]  # type: ignore[list-item]
    return list(given)  # type: ignore[arg-type]


def _conversations(given: Messages | Sequence[Messages]) -> list[Messages]:
    """A list of messages is one conversation."""
    return list(given) if given and not isinstance(given[0], dict) else [given]  # type: ignore[arg-type, list-item]


def _each(sampling: Samplings, count: int) -> list[Sampling]:
    if isinstance(sampling, Sampling):
        return [sampling] * count
    if len(sampling) != count:
        raise BadRequest(f"sampling must be one for all prompts or {count}, one for each; got {len(sampling)}", "sampling")
    return list(sampling)


def _embedding(prompt: Prompt, pooling: str) -> Ask:
    given: dict[str, Any] = {"model": "offline", "input": prompt if isinstance(prompt, str) else list(prompt), "pooling": pooling}

    def ask(request_id: str, text: ModelText, limits: Any) -> Any:
        request = fields.typed_fields(dict(given), EmbeddingRequest, [])
        (job,) = submissions(request, request_id, text, limits, PLAIN)
        return job

    return ask


def _vector(found: Answered) -> NDArray[np.float32]:
    return np.frombuffer(found.deltas[0][-1].embedding, "<f4")
