"""Text ⇄ token ids: the model's tokenizer, its chat template, incremental detokenisation and stop strings.

Called by `api/`. Reads only the model's directory: no template, code or URL ever comes from a request. The pieces at the end
(`Detokenizer`, `StopMatcher`) are pure and hold one request's state each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from pagoda_daemon.errors import BadRequest, ModelRejected
from pagoda_daemon.spelling import Speller

_REPLACEMENT: Final = "\ufffd"
_MAX_HELD: Final = 64  # ids that form no character or show nothing, decoded anew with each token: unbounded it is quadratic
_MAX_CHARACTER: Final = 4  # bytes of UTF-8, so ids too


@dataclass(frozen=True)
class Defaults:
    """What generation_config.json says of sampling; OpenAI's defaults where it is silent."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class ModelText:
    """The text side of a model directory. Thread-safe: rendering and encoding keep no state."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = _load_tokenizer(directory / "tokenizer.json")
        self._longest = max(map(len, self._tokenizer.get_vocab()), default=1)
        self.spell = Speller(self._tokenizer)
        config = _read_json(directory / "tokenizer_config.json", required=False)
        generation = _read_json(directory / "generation_config.json", required=False)
        model = _read_json(directory / "config.json", required=True)
        self._special = {name: text for name in ("bos_token", "eos_token", "unk_token", "pad_token") if (text := _text(config.get(name)))}
        self._template = _compile(_template_source(directory, config), directory)
        self.stop_ids = self._stop_ids(generation, model)
        self.defaults = _defaults(generation, directory)

    def _stop_ids(self, generation: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[int, ...]:
        found = generation.get("eos_token_id", model.get("eos_token_id"))
        if found is None and "eos_token" in self._special:
            found = self._tokenizer.token_to_id(self._special["eos_token"])
        ids = found if isinstance(found, list) else [] if found is None else [found]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
            raise ModelRejected(f"eos_token_id: {found!r} is not a token id or a list of them")
        return tuple(ids)

    def encode(self, text: str, context: int) -> tuple[int, ...]:
        """Ids of a raw prompt, with the special ids that the tokenizer's post-processor adds; BadRequest if too long at a glance."""
        return self._ids(text, context, "prompt", special=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]], context: int) -> tuple[int, ...]:
        """Ids of a conversation, as the model's own template writes it; BadRequest if too long at a glance."""
        if self._template is None:
            raise BadRequest("this model has no chat template: use /v1/completions", "messages", "no_chat_template")
        try:
            text = self._template.render(messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._special)
        except jinja2.TemplateError as error:
            raise BadRequest(f"the model's chat template refuses these messages: {error}", "messages") from error
        return self._ids(text, context, "messages", special=False)

    def _ids(self, text: str, context: int, param: str, *, special: bool) -> tuple[int, ...]:
        """No token stands for more characters than it is written with, so a text over `context` times the longest cannot fit."""
        if len(text) > context * self._longest:
            raise BadRequest(
                f"this model's context is {context} tokens; the prompt has {len(text)} characters, and {context} tokens hold at most "
                f"{context * self._longest}",
                param,
                "context_length_exceeded",
            )
        # Not `encode`: it keeps the interpreter's lock, 8 s for 8 MB in which no probe, state frame or stream moves.
        return tuple(self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def word_ids(self, word: str) -> tuple[int, ...]:
        """Ids of a piece of text as it stands within another."""
        return tuple(self._tokenizer.encode(word, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special ones left out."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def _load_tokenizer(path: Path) -> Tokenizer:
    if not _present(path):
        raise ModelRejected(f"{path.name} is missing in {path.parent}")
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise ModelRejected(f"{path.name} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    if not _present(path):
        if required:
            raise ModelRejected(f"{path.name} is missing in {path.parent}")
        return {}
    try:
        parsed = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise ModelRejected(f"{path.name} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelRejected(f"{path.name} is not a JSON object")
    return parsed


def _present(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # a directory on the way may not be entered
        raise ModelRejected(f"{path.name} in {path.parent} cannot be read: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelRejected(f"{path.name} in {path.parent} cannot be read: {error}") from error


def _text(token: Any) -> str | None:
    """tokenizer_config.json writes a special token as a string or as an object."""
    content = token.get("content") if isinstance(token, dict) else token
    if content is not None and not isinstance(content, str):
        raise ModelRejected(f"tokenizer_config.json: a special token is {content!r:.64}, accepted is a string")
    return content


def _template_source(directory: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja wins over tokenizer_config.json; of several named templates the one called default."""
    file = directory / "chat_template.jinja"
    if _present(file):
        return _read(file)
    source = config.get("chat_template")
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        if len(named) != len(source):
            raise ModelRejected(
                f"tokenizer_config.json in {directory}: chat_template is a list, accepted are objects with name and template"
            )
        source = {entry["name"]: entry.get("template") for entry in named}.get("default")
    if source is not None and not isinstance(source, str):
        raise ModelRejected(
            f"tokenizer_config.json in {directory}: chat_template is {source!r:.64}, accepted is a string or a list of them"
        )
    return source


def _compile(source: str | None, directory: Path) -> jinja2.Template | None:
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ModelRejected(f"the chat template in {directory} is not valid: {error}") from error


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a trainer learns from; when serving it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Hugging Face's filter: unlike Jinja's own it does not escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _defaults(generation: Mapping[str, Any], directory: Path) -> Defaults:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    values = {name: generation[name] for name in names if generation.get(name) is not None}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**31:
            raise ModelRejected(f"generation_config.json in {directory}: {name} is {value!r:.64}, accepted is a number from 0")
    top_k = values.pop("top_k", 0)
    if top_k != int(top_k):
        raise ModelRejected(f"generation_config.json in {directory}: top_k is {top_k}, accepted is a whole number")
    if values.get("repetition_penalty") == 0:
        raise ModelRejected(f"generation_config.json in {directory}: repetition_penalty is 0, accepted is more")
    return Defaults(**values, top_k=int(top_k))


class Detokenizer:
    """Ids in, text out, never half a character. Joined outputs equal `decode` of all ids.

    A decoder shows bytes that do not make a character yet as U+FFFD, and one with byte fallback then shows all bytes of the run so:
    while text ends in U+FFFD nothing of that run is final. The window decoded goes back to the last point but one where text was
    whole, for two reasons: decoders treat the first id apart (leading space), and a run must not start in mid-character.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._whole = 0  # ids of the window up to the last point where text was whole
        self._sent = 0  # characters of the window's text that are out

    def push(self, ids: Iterable[int]) -> str:
        """Text that is final with these ids."""
        self._window += ids
        text = self._decode(self._window)
        new = text.rstrip(_REPLACEMENT)[self._sent :]
        self._sent += len(new)
        if not text.endswith(_REPLACEMENT):
            self._shorten()
        elif len(self._window) - self._whole > _MAX_HELD:
            new += self._let_go(text)
        return new

    def _shorten(self) -> None:
        tail = self._window[self._whole :]
        if shown := self._decode(tail):  # special ids alone show nothing and are no context
            self._window, self._whole, self._sent = tail, len(tail), len(shown)
        elif len(tail) > _MAX_HELD:
            del self._window[self._whole :]

    def _let_go(self, text: str) -> str:
        """Ends a long run that forms no character, where that splits none: its last ids may yet become one."""
        last = len(self._window) - _MAX_CHARACTER
        cuts = range(last, last - _MAX_CHARACTER, -1)
        at = next((at for at in cuts if self._decode(self._window[:at]) + self._decode(self._window[at:]) == text), last)
        shown = self._decode(self._window[:at])
        new = shown[self._sent :]
        self._window, self._whole, self._sent = self._window[at:], 0, max(0, self._sent - len(shown))
        return new

    def flush(self) -> str:
        """What is still held back, at the end of the request."""
        new = self._decode(self._window)[self._sent :]
        self._sent += len(new)
        return new


class StopMatcher:
    """Cuts text before (`include`: behind) the stop string that is complete first, also where it spans several pushes; holds back what
    may yet become one. However the text is pushed, what comes out is the same."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Text that cannot belong to a stop string any more; nothing once stopped."""
        if self.stopped:
            return ""
        self._held += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            end, start = min(found)
            keep = end if self._include else start
        else:
            keep = len(self._held) - max((_overlap(self._held, stop) for stop in self._stops), default=0)
        out, self._held = self._held[:keep], self._held[keep:]
        return out

    def flush(self) -> str:
        """What was held back and did not become a stop string."""
        out, self._held = ("" if self.stopped else self._held), ""
        return out


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that `text` ends with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
