"""Text ⇄ token ids: the model's tokenizer, its chat template, incremental detokenisation.

Called by `api/`. Reads only the model's directory: no template, code or URL ever comes from a request. Incremental detokenisation is
`detokenize`, stop strings are `stops`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer

from pagoda_daemon.core.errors import BadRequest, ModelRejected, context_exceeded
from pagoda_daemon.core.sampling import NUMBERS
from pagoda_daemon.text.detokenize import Detokenizer, detokenizers
from pagoda_daemon.text.files import present, read, read_json
from pagoda_daemon.text.infill import infill_of
from pagoda_daemon.text.spelling import Speller
from pagoda_daemon.text.template_files import DEFAULT, WITH_TOOLS, template_sources
from pagoda_daemon.text.templates import ChatTemplate

_HERE: Final = "\ue000\uf8ff\ue000"  # of the private use area: stands where the last message is to be continued
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatShape(NamedTuple):
    """How a conversation is written: whether the beginning of an answer follows (`answer_follows`), whether the last message is left open
    instead (`continue_last`), and whether the tokenizer adds its special ids to those that the template writes. `variables` are the
    template's, by name."""

    answer_follows: bool = True
    continue_last: bool = False
    special: bool = False
    variables: tuple[tuple[str, bool | str], ...] = ()


AS_A_QUESTION: Final = ChatShape()
Tools = Sequence[Mapping[str, Any]] | None


class ModelText:
    """The text side of a model directory. Thread-safe: rendering and encoding keep no state.

    The file `chat_template` replaces the model's own. `template` is the one that conversations with tools are written by."""

    def __init__(
        self, directory: Path, tool_parser: str | None = None, chat_template: Path | None = None, reasoning_parser: str | None = None
    ) -> None:
        self._tokenizer = _load_tokenizer(directory / "tokenizer.json")
        self._longest = max(map(len, self._tokenizer.get_vocab()), default=1)
        self.spell = Speller(self._tokenizer)
        self.infill = infill_of(lambda token: self._tokenizer.token_to_id(token) is not None)
        self._detokenizers = {
            skip: detokenizers(self._tokenizer, partial(self.decode, skip_special=skip), skip_special=skip) for skip in (True, False)
        }
        config = _tokenizer_config(directory)
        generation = read_json(directory / "generation_config.json", required=False)
        model = read_json(directory / "config.json", required=True)
        self._special = _special_tokens(config)
        sources = template_sources(directory, config) if chat_template is None else {DEFAULT: read(chat_template)}
        self.template = sources.get(WITH_TOOLS, sources.get(DEFAULT, ""))
        self.tool_parser, self.reasoning_parser = tool_parser, reasoning_parser
        self._templates = {name: ChatTemplate(source, directory) for name, source in sources.items()}
        self._warming, self._is_warm = threading.Lock(), False
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

    def encode(self, text: str, context: int, *, special: bool = True, param: str = "prompt") -> tuple[int, ...]:
        """Ids of a raw prompt, with the special ids that the tokenizer's post-processor adds; BadRequest if too long at a glance."""
        return self._ids(text, context, param, special=special)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], context: int, shape: ChatShape = AS_A_QUESTION, tools: Tools = None
    ) -> tuple[int, ...]:
        """Ids of a conversation, as the model's own template writes it; BadRequest if too long at a glance."""
        return self._ids(self._rendered(messages, context, shape, tools), context, "messages", special=shape.special)

    def warm(self) -> None:
        """Compiles the chat template; ModelRejected where it does not compile. Once: requests that come meanwhile wait until it is done. Of
        many fronts of one text some were refused otherwise, as conversations are that wait too long, and had failed for good."""
        with self._warming:
            for template in () if self._is_warm else self._templates.values():
                template.check()
            self._is_warm = True

    def close(self) -> None:
        """Ends the processes that render templates. Idempotent; no conversation can be written after it."""
        for template in self._templates.values():
            template.close()

    def chat_text(self, messages: Sequence[Mapping[str, Any]], context: int, shape: ChatShape = AS_A_QUESTION, tools: Tools = None) -> str:
        """The text that `encode_chat` makes ids of."""
        return self._rendered(messages, context, shape, tools)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], context: int, shape: ChatShape, tools: Tools) -> str:
        """To continue the last message, a mark stands at its end, and the text is cut there. As in transformers, the space after the mark
        shows whether the template trims messages: then spaces before the cut go as well."""
        if not shape.continue_last:
            return self._render(messages, context, shape, tools)
        last = messages[-1]
        text = self._render([*messages[:-1], {**last, "content": f"{last['content']}{_HERE} "}], context, shape, tools)
        if text.count(_HERE) != 1 or last["content"].strip() not in text:
            raise BadRequest(
                "the model's chat template does not show the last message whole and once: it cannot be continued", "continue_final_message"
            )
        at = text.index(_HERE)
        return text[:at] if text.startswith(f"{_HERE} ", at) else text[:at].rstrip()

    def _render(self, messages: Sequence[Mapping[str, Any]], context: int, shape: ChatShape, tools: Tools) -> str:
        template = self._templates.get(WITH_TOOLS if tools and WITH_TOOLS in self._templates else DEFAULT)
        if template is None:
            raise BadRequest("this model has no chat template: use /v1/completions", "messages", "no_chat_template")
        most = context * self._longest
        given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": shape.answer_follows}
        text = template.render({**self._special, **dict(shape.variables), **given}, most)
        if text is None:
            raise _too_long(context, f"more than {most}", most, "messages")
        return text

    def _ids(self, text: str, context: int, param: str, *, special: bool) -> tuple[int, ...]:
        """No token stands for more characters than it is written with, so a text over `context` times the longest cannot fit."""
        if len(text) > (most := context * self._longest):
            raise _too_long(context, str(len(text)), most, param)
        # Not `encode`: it keeps the interpreter's lock, 8 s for 8 MB in which no probe, state frame or stream moves.
        return tuple(self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def special_id(self, token: str) -> int | None:
        """The id of a special token, which `decode` leaves out; None where there is no such token or it is plain text."""
        found = self._tokenizer.token_to_id(token)
        added = self._tokenizer.get_added_tokens_decoder()
        return found if found in added and added[found].special else None

    def mark_id(self, token: str) -> int | None:
        """The id by which a grammar names a token: a special one, or an added one in angle brackets, which the grammar library takes for
        special as well (Qwen3's `</think>` is of that kind). None where `token` is plain text to it."""
        found = self._tokenizer.token_to_id(token)
        added = self._tokenizer.get_added_tokens_decoder()
        return found if found in added and (added[found].special or (token[0] == "<" and token[-1] == ">")) else None

    def named_id(self, name: str) -> int | None:
        """The id of a token that the model has under a name such as bos_token; None where it has none."""
        token = self._special.get(name)
        return None if token is None else self._tokenizer.token_to_id(token)

    def word_ids(self, word: str) -> tuple[int, ...]:
        """Ids of a piece of text as it stands within another."""
        return tuple(self._tokenizer.encode(word, add_special_tokens=False).ids)

    def decode_apart(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """`decode` for any number of ids, on a thread: it keeps the interpreter's lock, 1.7 s for 4 million ids; this one lets go of it."""
        return str(self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special)[0])

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ids, special ones left out or not."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special)
        return text

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """For one answer: its ids in as they come, its text out."""
        return self._detokenizers[skip_special]()


def _too_long(context: int, characters: str, most: int, param: str) -> BadRequest:
    return context_exceeded(context, f"{param} has {characters} characters, and {context} tokens hold at most {most}", param)


def _load_tokenizer(path: Path) -> Tokenizer:
    if not present(path):
        raise ModelRejected(f"{path.name} is missing in {path.parent}")
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise ModelRejected(f"{path.name} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _tokenizer_config(directory: Path) -> dict[str, Any]:
    """As transformers reads it: without added_tokens_decoder, special tokens in the file of their own win. Older models have one."""
    config = read_json(directory / "tokenizer_config.json", required=False)
    if "added_tokens_decoder" in config:
        return config
    return config | read_json(directory / "special_tokens_map.json", required=False)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """By the names that chat templates know them by: those of every tokenizer, and what a model calls a token beyond them."""
    own = {name: value for name, value in config.items() if name.endswith("_token") and (name in _SPECIAL or isinstance(value, str | dict))}
    extra = config.get("extra_special_tokens")
    named = own | (extra if isinstance(extra, dict) else {})
    return {name: text for name, token in named.items() if (text := _text(token)) is not None}


def _text(token: Any) -> str | None:
    """tokenizer_config.json writes a special token as a string or as an object."""
    content = token.get("content") if isinstance(token, dict) else token
    if content is not None and not isinstance(content, str):
        raise ModelRejected(f"tokenizer_config.json: a special token must be a string, got {content!r:.64}")
    return content


def _defaults(generation: Mapping[str, Any], directory: Path) -> Mapping[str, float]:
    """What generation_config.json says of sampling, by the names of `Sampling`."""
    values = {name: generation[name] for name, number in NUMBERS.items() if number.of_model and generation.get(name) is not None}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**31:
            raise ModelRejected(f"generation_config.json in {directory}: {name} must be a number of at least 0, got {value!r:.64}")
    top_k = values.get("top_k", 0)
    if top_k != int(top_k):
        raise ModelRejected(f"generation_config.json in {directory}: top_k must be a whole number, got {top_k}")
    if values.get("repetition_penalty") == 0:
        raise ModelRejected(f"generation_config.json in {directory}: repetition_penalty must be above 0, got 0")
    return values | ({"top_k": int(top_k)} if "top_k" in values else {})
