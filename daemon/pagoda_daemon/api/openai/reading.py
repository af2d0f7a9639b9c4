"""How the answers of one request are read: the parser of reasoning and calls that this model needs. Pure; called by `routes.generation`.

Every dialect takes its parsers from here, so that they read one answer alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from pagoda_daemon.answers.events import AnswerParser, PlainText
from pagoda_daemon.answers.forms import REASONING_FORMS, TOOL_FORMS, ToolForm, reasoning_form_of, tool_form_of
from pagoda_daemon.answers.reasoning import ReasoningForm, ReasoningParser, Start, starts_in
from pagoda_daemon.answers.wishes import Shape, Wish
from pagoda_daemon.api.openai.requests import ChatRequest
from pagoda_daemon.api.openai.tool_grammars import answer_grammar
from pagoda_daemon.api.openai.tools import Toolbox
from pagoda_daemon.nouns.errors import BadRequest
from pagoda_daemon.nouns.messages import Grammar
from pagoda_daemon.text.tokens import ModelText

_PROMPT_END = 32  # tokens of the prompt's end that may hold a mark


@dataclass(frozen=True)
class Reading:
    """`parser` makes the parser of one answer. `must`: the answer is nothing but calls. `named`: the client chose the function itself.
    `grammar` binds the answer's text. `marks`: the parser needs marks that are special tokens, so they stay in the text."""

    parser: Callable[[], AnswerParser] = PlainText
    form: ToolForm | None = None
    must: bool = False
    named: bool = False
    marks: bool = False
    grammar: Grammar | None = None

    def call_id(self, request_id: str, choice: int, number: int) -> str:
        """Returns the id of call `number` of a choice."""
        return (self.form or TOOL_FORMS["hermes"]).call_id(request_id, choice, number)


PLAIN = Reading()


def tool_form(text: ModelText) -> ToolForm:
    """BadRequest if it is not known how this model writes calls."""
    form = TOOL_FORMS.get(text.tool_parser or "") or tool_form_of(text.template)
    if form is None:
        raise BadRequest("this model's chat template has no tools in a way that is known here", "tools", "unsupported_parameter")
    return form


def reading_of(request: ChatRequest, prompt: Sequence[int], wished: Grammar | None, text: ModelText) -> Reading:
    """Returns how the answers to `request` are read. `prompt` is the conversation's, `wished` the grammar of a format that it asks for."""
    box = request.box
    form = None if box is None else tool_form(text)
    content = PlainText if form is None or box is None else _calls(form, box, formatted=wished is not None)
    grammar = wished if form is None or box is None else _grammar(form, box, wished, text)
    thinks = REASONING_FORMS.get(text.reasoning_parser or "") or reasoning_form_of(text.template)
    parser = content if thinks is None else _thinking(thinks, _start(thinks, request, prompt, text), content)
    needed = (*(form.marks if form else ()), *((thinks.begin, thinks.end) if thinks else ()))
    marks = any(text.special_id(mark) is not None for mark in needed)
    return Reading(parser, form, bool(box and box.must), bool(box and box.named), marks, grammar)


def _calls(form: ToolForm, box: Toolbox, *, formatted: bool) -> Callable[[], AnswerParser]:
    shape: Shape = "calls" if box.must else "either" if formatted else "free"
    parameters = {tool.function.name: tool.function.parameters or {} for tool in box.tools}
    wish = Wish(1 if box.single else None, shape, parameters)
    return lambda: form.parser(wish)


def _grammar(form: ToolForm, box: Toolbox, wished: Grammar | None, text: ModelText) -> Grammar | None:
    """Makes an answer calls, or the format that is wished if none must be."""
    if form.json is None or not (box.must or wished):
        return None
    ids = text.special_id(form.json.begin), text.special_id(form.json.end)
    grammar = answer_grammar(box, form.json, ids, None if box.must else wished)
    return structs.replace(grammar, eos=text.stop_ids, param="tools")


def _thinking(form: ReasoningForm, start: Start, content: Callable[[], AnswerParser]) -> Callable[[], AnswerParser]:
    return content if start == "outside" else lambda: ReasoningParser(form, start, content())


def _start(form: ReasoningForm, request: ChatRequest, prompt: Sequence[int], text: ModelText) -> Start:
    """A conversation whose last message is continued may end within a thought."""
    if request.continue_final_message:
        said = str(request.turns()[-1]["content"])
        return "inside" if said.rfind(form.begin) > said.rfind(form.end) else "outside"
    start = starts_in(form, text.decode(prompt[-_PROMPT_END:], skip_special=False))
    off = any(name in ("enable_thinking", "thinking") and value is False for name, value in request.shape.variables)
    return "outside" if off and start == "open" else start
