"""The forms in which models write reasoning and calls, by vLLM's names, and which form a model has. Pure data.

A form is read from what the model's chat template writes itself. A person may name another one (`--tool-call-parser`,
`--reasoning-parser`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pagoda_daemon.answers import harmony
from pagoda_daemon.answers.events import AnswerParser
from pagoda_daemon.answers.headed import DEEPSEEK, HeadedCalls, MistralCalls
from pagoda_daemon.answers.json_calls import JsonCalls, JsonForm
from pagoda_daemon.answers.layouts import NAME, Layout, Values
from pagoda_daemon.answers.pythonic import PythonicCalls
from pagoda_daemon.answers.reasoning import ReasoningForm
from pagoda_daemon.answers.tagged import GLM, QWEN3_CODER, TaggedCalls
from pagoda_daemon.answers.wishes import Wish

HARMONY: Final = "openai"


@dataclass(frozen=True)
class ToolForm:
    """`marks`: texts that the parser needs, also if they are special tokens. `layout`: how calls are enforced. `id_length`: characters of
    a call's id, if the template insists on a number."""

    name: str
    parser: Callable[[Wish], AnswerParser]
    marks: tuple[str, ...]
    layout: Layout
    id_length: int | None = None

    def call_id(self, request_id: str, choice: int, index: int) -> str:
        """Returns the same id for the same call; clients hand it back with the result."""
        digest = hashlib.sha256(f"{request_id}/{choice}/{index}".encode()).hexdigest()
        return digest[: self.id_length] if self.id_length else f"call_{digest[:24]}"


def _object(arguments: str) -> str:
    return f'{{"name": {NAME}, "{arguments}": '


_LIST = JsonForm("[TOOL_CALLS]", "", ", ", listed=True)
_MISTRAL: Final = ToolForm(
    "mistral",
    partial(MistralCalls, _LIST),
    ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    Layout("[TOOL_CALLS]", _object("arguments"), "}", "[TOOL_CALLS][", ", ", "]"),
    id_length=9,
)
_DEEPSEEK_MARKS: Final = (DEEPSEEK.begin, DEEPSEEK.end, DEEPSEEK.again, "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
_DEEPSEEK: Final = partial(HeadedCalls, DEEPSEEK)
_V3: Final = Layout(
    DEEPSEEK.begin,
    f"{DEEPSEEK.again}function<｜tool▁sep｜>{NAME}\n```json\n",
    "\n```<｜tool▁call▁end｜>",
    DEEPSEEK.begin,
    "\n",
    DEEPSEEK.end,
    quoted=False,
)
_V31: Final = Layout(
    DEEPSEEK.begin, f"{DEEPSEEK.again}{NAME}<｜tool▁sep｜>", "<｜tool▁call▁end｜>", DEEPSEEK.begin, "", DEEPSEEK.end, quoted=False
)
_HARMONY: Final = Layout(
    f"{harmony.CHANNEL}commentary to=",
    f"{harmony.CHANNEL}commentary to=functions.{NAME} {harmony.CONSTRAIN}json{harmony.MESSAGE}",
    quoted=False,
    single=True,
)
_PHI: Final = ("<|tool_call|>", "<|/tool_call|>")
_TOOL_CALL: Final = ("<tool_call>", "</tool_call>")
_KEY: Final = re.compile(r"[^<>\s](?:[^<>\n]{0,126}[^<>\s])?")
_QWEN3_CODER: Final = Layout(
    "<tool_call>",
    f"<tool_call>\n<function={NAME}>\n",
    "</function>\n</tool_call>",
    between="\n",
    quoted=False,
    values=Values(f"<parameter={NAME}>\n", "\n</parameter>\n", "", text=True, name=_KEY),
)
_GLM: Final = Layout(
    "<tool_call>",
    f"<tool_call>{NAME}\n",
    "</tool_call>",
    between="\n",
    quoted=False,
    values=Values(f"<arg_key>{NAME}</arg_key>\n<arg_value>", "</arg_value>\n", "", text=True, name=_KEY),
)
_PYTHONIC: Final = Layout(
    "",
    f"{NAME}(",
    ")",
    "[",
    ", ",
    "]",
    quoted=False,
    values=Values(f"{NAME}=", "", ", ", text=False, name=re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")),
)

TOOL_FORMS: Final[Mapping[str, ToolForm]] = {
    form.name: form
    for form in (
        ToolForm(
            "hermes",
            partial(JsonCalls, JsonForm(*_TOOL_CALL, "\n")),
            _TOOL_CALL,
            Layout("<tool_call>", f"<tool_call>\n{_object('arguments')}", "}\n</tool_call>", between="\n"),
        ),
        ToolForm("llama3_json", partial(JsonCalls, JsonForm("", "", "; ")), (), Layout("", _object("parameters"), "}", between="; ")),
        ToolForm("pythonic", PythonicCalls, (), _PYTHONIC),
        ToolForm("llama4_pythonic", PythonicCalls, (), _PYTHONIC),
        _MISTRAL,
        ToolForm(
            "granite",
            partial(JsonCalls, JsonForm("<|tool_call|>", "", ", ", listed=True)),
            ("<|tool_call|>",),
            Layout("<|tool_call|>", _object("arguments"), "}", "<|tool_call|>[", ", ", "]"),
        ),
        ToolForm(
            "phi4_mini_json",
            partial(JsonCalls, JsonForm("functools", "", ", ", listed=True, other=_PHI)),
            _PHI,
            Layout(_PHI[0], _object("arguments"), "}", f"{_PHI[0]}[", ", ", f"]{_PHI[1]}"),
        ),
        ToolForm("deepseek_v3", _DEEPSEEK, _DEEPSEEK_MARKS, _V3),
        ToolForm("deepseek_v31", _DEEPSEEK, _DEEPSEEK_MARKS, _V31),
        ToolForm("qwen3_coder", partial(TaggedCalls, QWEN3_CODER), _TOOL_CALL, _QWEN3_CODER),
        ToolForm("glm45", partial(TaggedCalls, GLM), (*_TOOL_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), _GLM),
        ToolForm(HARMONY, harmony.Harmony, harmony.MARKS, _HARMONY),
    )
}
# What is enforced instead, if the template has the sign.
_OTHER_LAYOUTS: Final = (
    ("[ARGS]", replace(_MISTRAL, layout=Layout("[TOOL_CALLS]", f"[TOOL_CALLS]{NAME}[ARGS]", quoted=False))),
    ("functools", replace(TOOL_FORMS["phi4_mini_json"], layout=Layout("functools", _object("arguments"), "}", "functools[", ", ", "]"))),
)
_THINK: Final = (("<think>",), ("</think>",))
_GRANITE: Final = (("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:"))
REASONING_FORMS: Final[Mapping[str, ReasoningForm]] = {
    form.name: form
    for form in (
        ReasoningForm("deepseek_r1", *_THINK, always=True),
        ReasoningForm("deepseek_v3", *_THINK),
        ReasoningForm("qwen3", *_THINK),
        ReasoningForm("glm45", *_THINK),
        ReasoningForm("granite", *_GRANITE),
        ReasoningForm("mistral", ("[THINK]",), ("[/THINK]",)),
    )
}
# The first line all of whose signs are in a template names the form. Templates of the later lines' models lack the earlier signs.
_TOOL_SIGNS: Final = (
    (HARMONY, (harmony.CHANNEL, harmony.MESSAGE)),
    ("deepseek_v3", (DEEPSEEK.begin, "```json")),
    ("deepseek_v31", (DEEPSEEK.begin,)),
    ("glm45", ("<arg_key>",)),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("hermes", ("<tool_call>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("phi4_mini_json", ("<|tool|>",)),
    ("phi4_mini_json", ("functools",)),
    ("granite", ("<|tool_call|>",)),
    ("llama4_pythonic", ("func_name1(", "<|python_start|>")),
    ("pythonic", ("func_name1(",)),
    ("llama3_json", ('"parameters"',)),
)
_REASONING_SIGNS: Final = (
    (HARMONY, (harmony.CHANNEL, harmony.MESSAGE)),
    ("mistral", ("[THINK]",)),
    ("granite", ("Here is my thought process",)),
    ("deepseek_v3", ("</think>", "<｜Assistant｜>", "<think>")),
    ("deepseek_r1", ("</think>", "<｜Assistant｜>")),  # a template that never writes the first mark: the model thinks anyway
    ("glm45", ("</think>", "[gMASK]")),
    ("qwen3", ("</think>",)),
)


def tool_form_of(template: str, named: str | None = None) -> ToolForm | None:
    """Returns the form that is named, or the one that a chat template teaches; None if it knows no tools, or none of these forms."""
    name = named or (_signed(_TOOL_SIGNS, template) if "tools" in template else None)
    other = next((form for sign, form in _OTHER_LAYOUTS if form.name == name and sign in template), None)
    return other or (TOOL_FORMS[name] if name else None)


def is_harmony(template: str, named: str | None = None) -> bool:
    """Whether the answers are GPT-OSS's, whose reasoning and calls one parser reads."""
    return (named or _signed(_REASONING_SIGNS, template)) in (HARMONY, "openai_gptoss")


def reasoning_form_of(template: str, named: str | None = None) -> ReasoningForm | None:
    """Returns the form that is named, or the one that a chat template has; None if there is none."""
    return REASONING_FORMS.get(named or _signed(_REASONING_SIGNS, template) or "")


def _signed(signs: tuple[tuple[str, tuple[str, ...]], ...], template: str) -> str | None:
    return next((name for name, found in signs if all(sign in template for sign in found)), None)
