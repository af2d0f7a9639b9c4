"""Chat templates: transformers is the judge of what each writes, and of what it refuses. tests/data/chat_templates says what they use."""

import json
from datetime import datetime
from pathlib import Path

import jinja2
import msgspec
import pytest
from pagoda_daemon.api.openai.messages import Message, turns
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.text import template_worker
from pagoda_daemon.text.template_worker import Done, Job, attempt
from pagoda_daemon.text.templates import ChatTemplate
from pagoda_daemon.text.tokens import ChatShape, ModelText
from support.engine.toy_model import tiny_model_dir

pytestmark = pytest.mark.parity

FOLDER = Path(__file__).parents[1] / "data" / "chat_templates"
TEMPLATES = sorted(FOLDER.glob("*.jinja"))
TOOLS = json.loads((FOLDER / "tools.json").read_text())
CONVERSATIONS = json.loads((FOLDER / "conversations.json").read_text())
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
SWITCHES = ("enable_thinking", "thinking", "reasoning_effort")
CONTEXT = 4096


class Noon(datetime):
    """A clock that stands."""

    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 9, 12, 4, 5, tzinfo=tz)


@pytest.fixture(scope="module")
def judge():
    from transformers.utils import chat_template_utils

    return chat_template_utils


@pytest.fixture
def in_process(monkeypatch):
    """Templates rendered without a process of their own, which costs 0.3 s of CPU to start."""
    monkeypatch.setattr(ChatTemplate, "_ask", lambda self, job: attempt(self._source, [], job))


@pytest.fixture
def noon(judge, monkeypatch):
    for module in (judge, template_worker):
        monkeypatch.setattr(module, "datetime", Noon)


def tools_of(case):
    return TOOLS if case.get("tools") else None


def answer_follows(case):
    return case.get("add_generation_prompt", True)


def switches(case):
    return {name: case[name] for name in SWITCHES if name in case}


def as_sent(message):
    """As a client sends it: the arguments of a call are a string."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


def our_turns(case):
    return turns(msgspec.convert([as_sent(message) for message in case["messages"]], list[Message]))


def ours(source, case, compiled):
    """By what the template's process runs, with what it is sent."""
    given = {"tools": tools_of(case), "documents": None, "add_generation_prompt": answer_follows(case)}
    job = Job({"messages": our_turns(case), **given, **switches(case), **SPECIAL}, 10**6)
    return attempt(source, compiled, msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=Job))


def theirs(judge, source, case):
    settings = {"add_generation_prompt": answer_follows(case), **switches(case), **SPECIAL}
    try:
        (text,), _ = judge.render_jinja_template([case["messages"]], tools=tools_of(case), chat_template=source, **settings)
    except jinja2.TemplateError as error:
        return Done(error=str(error))
    except Exception as error:  # noqa: BLE001  a template may fail in any way
        return Done(error=f"{type(error).__name__}: {error}")
    return Done(text)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_writes_and_refuses_what_transformers_does(path, judge, noon):
    source, compiled = path.read_bytes().decode(), []
    assert {name: ours(source, case, compiled) for name, case in CONVERSATIONS.items()} == {
        name: theirs(judge, source, case) for name, case in CONVERSATIONS.items()
    }


def model(folder, **config):
    """A model's directory and what both make of it."""
    from transformers import PreTrainedTokenizerFast

    tiny_model_dir(folder)
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**special, **config}))
    return ModelText(folder), PreTrainedTokenizerFast.from_pretrained(folder)


def source_of(name):
    return (FOLDER / f"{name}.jinja").read_text()


def ids_or_refusal(write):
    try:
        return list(write())
    except (BadRequest, jinja2.TemplateError, ValueError):
        return "refused"


def both(text, tokenizer, case, *, continued=False):
    """Token ids of a conversation: ours by the template's own process, and the judge's."""
    shape = ChatShape(answer_follows(case) and not continued, continued, variables=tuple(switches(case).items()))
    settings = {"add_generation_prompt": shape.answer_follows, "continue_final_message": continued, "return_dict": False, **switches(case)}
    return (
        ids_or_refusal(lambda: text.encode_chat(our_turns(case), CONTEXT, shape, tools_of(case))),
        ids_or_refusal(lambda: tokenizer.apply_chat_template(case["messages"], tools=tools_of(case), **settings)),
    )


@pytest.mark.parametrize("name", ["qwen_thinking", "tojson_options"])
def test_a_models_directory_gives_the_ids_that_transformers_gives(name, tmp_path):
    text, tokenizer = model(tmp_path, chat_template=source_of(name))
    for conversation, case in CONVERSATIONS.items():
        mine, judged = both(text, tokenizer, case)
        assert mine == judged, conversation


@pytest.mark.parametrize("where", ["config", "files"])
def test_named_templates_are_chosen_as_transformers_chooses(where, tmp_path, in_process):
    named = {"default": "default {{ messages[0].content }}", "tool_use": "tools {{ tools | tojson }}", "rag": "never"}
    config = {"chat_template": [{"name": name, "template": source} for name, source in named.items()]}
    if where == "files":
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "chat_template.jinja").write_text("file " + named["default"])
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("file " + named["tool_use"])
    text, tokenizer = model(tmp_path, **config)
    for name in ("plain", "tools"):
        mine, judged = both(text, tokenizer, CONVERSATIONS[name])
        assert mine == judged != "refused"


@pytest.mark.parametrize("modern", [True, False])
def test_special_tokens_have_the_names_that_transformers_gives_them(modern, tmp_path, in_process):
    """The file of their own counts for older models, without added_tokens_decoder."""
    names = ["unk_token", "pad_token", "sep_token", "cls_token", "mask_token", "image_token", "boi_token", "add_bos_token"]
    shown = "".join(f"{name}={{{{ {name} }}}} {{{{ {name} is defined }}}} " for name in ["bos_token", "eos_token", *names])
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": "<mask>", "bos_token": "<other>"}))
    config = {"sep_token": "<sep>", "cls_token": "", "pad_token": None, "boi_token": "<boi>", "add_bos_token": True}
    config |= {"extra_special_tokens": {"image_token": "<image>"}}
    text, tokenizer = model(tmp_path, chat_template=shown, **config, **({"added_tokens_decoder": {}} if modern else {}))
    mine, judged = both(text, tokenizer, CONVERSATIONS["plain"])
    assert text.decode(mine, skip_special=False) == tokenizer.decode(judged)


CONTINUED = {
    "kept": ("{{ bos_token }}{% for m in messages %}{{ m.content }}|{% endfor %}", "Once ", True),
    "trimmed": ("{% for m in messages %}{{ m.content | trim }}|{% endfor %}", "Once \n", True),
    "nothing to trim": ("{% for m in messages %}{{ m.content | trim }}|{% endfor %}", "Once", True),
    "empty": ("{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}", "", True),
    "not shown": ("{{ messages[0].content }}", "Once", False),
    "partly shown": ("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}", "<think>why</think>because", False),
}


@pytest.mark.parametrize(("source", "said", "continued"), CONTINUED.values(), ids=CONTINUED)
def test_a_message_is_continued_where_transformers_continues_it(source, said, continued, tmp_path, in_process):
    text, tokenizer = model(tmp_path, chat_template=source)
    case = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": said}]}
    mine, judged = both(text, tokenizer, case, continued=True)
    assert mine == judged
    assert (mine != "refused") is continued


def test_a_message_shown_twice_is_not_continued(tmp_path, in_process):
    """transformers leaves its mark in the text."""
    text, tokenizer = model(tmp_path, chat_template="{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}")
    mine, judged = both(text, tokenizer, {"messages": [{"role": "assistant", "content": "Once"}]}, continued=True)
    assert (mine, "CONTINUE_FINAL_MESSAGE_TAG" in tokenizer.decode(judged)) == ("refused", True)
