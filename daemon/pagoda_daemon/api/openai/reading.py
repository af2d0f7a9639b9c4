"""How the answers of one request are read: the parser of reasoning and calls that this model needs. Pure; called by `routes.generation`.

Every dialect takes its parsers from here, so that they read one answer alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from msgspec import structs

from pagoda_daemon.answers import harmony
from pagoda_daemon.answers.events import AnswerParser, PlainText, Thinker
from pagoda_daemon.answers.forms import TOOL_FORMS, ToolForm, is_harmony, reasoning_form_of, tool_form_of
from pagoda_daemon.answers.harmony import Harmony
from pagoda_daemon.answers.reasoning import ReasoningForm, ReasoningParser, Start, starts_in
from pagoda_daemon.answers.wishes import Shape, Wish
from pagoda_daemon.api.openai.requests import ChatRequest
from pagoda_daemon.api.openai.tool_grammars import Marks, after_reasoning, answer_grammar, harmony_grammar
from pagoda_daemon.api.openai.tools import Toolbox
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Grammar
from pagoda_daemon.text.tokens import ModelText

_PROMPT_END: Final = 32  # tokens of the prompt's end that may hold a mark


@dataclass(frozen=True)
class Reading:
    """`parser` makes the parser of one answer, `thinker` one that tells where its reasoning is; None if it has none. `must`: the answer is
    nothing but calls. `named`: the client chose the function itself. `grammar` binds the answer's text. `marks`: the parser needs marks
    that are special tokens, so they stay in the text."""

    parser: Callable[[], AnswerParser] = PlainText
    thinker: Callable[[], Thinker] | None = None
    form: ToolForm | None = None
    must: bool = False
    named: bool = False
    marks: bool = False
    grammar: Grammar | None = None

    def call_id(self, request_id: str, choice: int, number: int) -> str:
        """Returns the id of call `number` of a choice."""
        return (self.form or TOOL_FORMS["hermes"]).call_id(request_id, choice, number)


PLAIN: Final = Reading()


class _Thinking(NamedTuple):
    """How the model thinks in this answer: by marks, from a start; `harmony` is the prompt's end if its answers are GPT-OSS's."""

    form: ReasoningForm | None = None
    start: Start = "outside"
    harmony: str | None = None


def tool_form(text: ModelText) -> ToolForm:
    """BadRequest if it is not known how this model writes calls."""
    form = tool_form_of(text.template, text.tool_parser)
    if form is None:
        said = (
            "this model's chat template does not handle tools, or not in a way that is known here; serve --tool-call-parser names the way"
        )
        raise BadRequest(said, "tools", "unsupported_parameter")
    return form


def reading_of(request: ChatRequest, prompt: Sequence[int], wished: Grammar | None, text: ModelText) -> Reading:
    """Returns how the answers to `request` are read. `prompt` is the conversation's, `wished` the grammar of a format that it asks for."""
    box = request.box
    form = None if box is None else tool_form(text)
    thinking = _thinking(request, prompt, text)
    needed = _marks(form, thinking)
    marks = Marks.of(needed, text.mark_id)
    bound = _grammar(box, form, wished, thinking, marks)
    grammar = None if bound is None else structs.replace(bound, eos=text.stop_ids)
    parser, thinker = _parsers(thinking, None if box is None else _wish(box, formatted=wished is not None), form)
    return Reading(
        parser,
        thinker,
        form,
        bool(box and box.must),
        bool(box and box.named),
        any(text.special_id(mark) is not None for mark in needed),
        grammar,
    )


def _wish(box: Toolbox, *, formatted: bool) -> Wish:
    shape: Shape = "calls" if box.must else "either" if formatted else "free"
    return Wish(1 if box.single else None, shape, {tool.function.name: tool.function.parameters or {} for tool in box.tools})


def _marks(form: ToolForm | None, thinking: _Thinking) -> tuple[str, ...]:
    thought = () if thinking.form is None or thinking.start == "outside" else (*thinking.form.begins, *thinking.form.ends)
    return (*(form.marks if form else ()), *thought, *(() if thinking.harmony is None else harmony.MARKS))


def _parsers(
    thinking: _Thinking, wish: Wish | None, form: ToolForm | None
) -> tuple[Callable[[], AnswerParser], Callable[[], Thinker] | None]:
    content: Callable[[], AnswerParser] = PlainText if form is None or wish is None else partial(form.parser, wish)
    if (prompt_end := thinking.harmony) is not None:
        return (lambda: Harmony(wish, prompt_end)), (lambda: Harmony(wish, prompt_end))
    if (marked := thinking.form) is None or thinking.start == "outside":
        return content, None
    start = thinking.start
    return (lambda: ReasoningParser(marked, start, content())), (lambda: ReasoningParser(marked, start, PlainText()))


def _grammar(box: Toolbox | None, form: ToolForm | None, wished: Grammar | None, thinking: _Thinking, marks: Marks) -> Grammar | None:
    """Makes an answer calls, or the format that is wished, or lets calls follow the schemas of strict tools. It binds what comes after the
    reasoning, as in vLLM."""
    if wished is None and (box is None or not (box.must or box.strict)):
        return None
    if thinking.harmony is not None:
        return harmony_grammar(box, form.layout if form else None, marks, None if box is not None and box.must else wished)
    bound = wished
    if box is not None and form is not None:
        bound = structs.replace(answer_grammar(box, form.layout, marks, None if box.must else wished), param="tools")
    if bound is None or thinking.form is None or thinking.start == "outside":
        return bound
    return after_reasoning(thinking.form, bound, marks, opened=thinking.start == "inside")


def _thinking(request: ChatRequest, prompt: Sequence[int], text: ModelText) -> _Thinking:
    """A conversation whose last message is continued may end within a thought."""
    prompt_end = text.decode(prompt[-_PROMPT_END:], skip_special=False)
    if is_harmony(text.template, text.reasoning_parser) or text.tool_parser == "openai":
        return _Thinking(harmony=prompt_end)
    form = reasoning_form_of(text.template, text.reasoning_parser)
    if form is None:
        return _Thinking()
    if request.continue_final_message:
        return _Thinking(form, "inside" if form.opened(str(request.turns()[-1]["content"])) else "outside")
    start = starts_in(form, prompt_end)
    off = any(name in ("enable_thinking", "thinking") and value is False for name, value in request.shape.variables)
    return _Thinking(form, "outside" if off and not prompt_end.rstrip().endswith(form.begins) else start)
