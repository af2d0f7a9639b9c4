"""Chat templates: what a model's own may do, and that one which loops, grows or breaks out costs its requests and nothing else."""

import gc
import json
import os
import time

import pytest
from pagoda_daemon.core.errors import BadRequest, ModelRejected
from pagoda_daemon.text.templates import FAILED, ChatTemplate
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import tiny_model_dir

MESSAGES = [{"role": "user", "content": "hi"}]
MOST = 10_000


def render(source, messages=MESSAGES, most=MOST, **variables):
    return ChatTemplate(source, "here").render({"messages": messages, **variables}, most)


def refusal(source, **settings):
    with pytest.raises(BadRequest) as caught:
        render(source, **settings)
    return caught.value


def test_a_template_renders_with_hugging_faces_helpers():
    source = "{% for m in messages %}{% generation %}{{ m|tojson }}{% endgeneration %}{% if loop.last %}{% break %}{% endif %}{% endfor %}"
    assert render(source) == '{"role": "user", "content": "hi"}'
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")
    assert render("{{ bos_token }}{{ nothing }}", bos_token="<s>") == "<s>"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.nothing.more }}",
        "{{ 1 // 0 }}",
        "{{ messages[7].content + 1 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append({}) }}",
        "{{ 'a' * 10**10 }}",
        "{{ range(10**9)|list }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% set x = 'a' %}" + "{% set x = x ~ x %}" * 40 + "{{ x }}",
        pytest.param("{% set x = [1] %}" + "{% set x = [x, x] %}" * 40 + "{{ x|string|length }}", marks=pytest.mark.deep),
        "{{ 'a'|center(10**10) }}",
        "{{ '%10000000000d' % 1 }}",
    ],
)
def test_what_a_template_does_wrong_is_its_requests_400(source):
    error = refusal(source)
    assert error.param == "messages"
    assert "0x" not in str(error)
    assert "/" not in str(error).replace("//", "")


@pytest.mark.deep
def test_a_template_that_loops_for_ever_is_cut_and_the_next_request_is_served():
    source = "{% if messages[0].content == 'loop' %}" + "{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4 + "{% endif %}fine"
    template = ChatTemplate(source, "here")
    begun = time.thread_time()
    with pytest.raises(BadRequest) as caught:
        template.render({"messages": [{"role": "user", "content": "loop"}]}, MOST)
    assert caught.value.code == FAILED
    # Of the two seconds of CPU that it is cut after; the way there and back costs 10 ms.
    assert time.thread_time() - begun < 1.0, "the time was another process's"
    assert template.render({"messages": MESSAGES}, MOST) == "fine"


def test_text_beyond_the_limit_is_cut_while_it_is_made():
    assert render("{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxx{% endfor %}{% endfor %}", most=100_000) is None
    assert render("{{ 'x' * 100 }}", most=100) == "x" * 100
    assert render("{{ 'x' * 101 }}", most=100) is None


def test_large_conversations_pass_whole():
    messages = [{"role": "user", "content": "é" * 1_000_000}] * 3
    assert render("{% for m in messages %}{{ m.content }}{% endfor %}", messages, 10_000_000) == "é" * 3_000_000


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% generation %}"])
def test_a_template_that_is_none_is_refused_when_it_is_read(source):
    with pytest.raises(ModelRejected, match="not valid"):
        ChatTemplate(source, "here")


@pytest.mark.parametrize("source", ["{{ x|nofilter }}", pytest.param("{{ 9**(9**9) }}", marks=pytest.mark.deep)])
def test_a_template_that_does_not_compile_is_refused_when_it_is_checked(source):
    with pytest.raises(ModelRejected, match="chat template in here"):
        ChatTemplate(source, "here").check()


def test_its_processes_end_with_it():
    template = ChatTemplate("x", "here")
    template.render({}, 1)
    (worker,) = template._workers
    pid = worker._process.pid
    os.kill(pid, 0)
    del worker, template
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_conversations_with_tools_have_a_template_of_their_own_if_the_model_has_one(tmp_path):
    folder = tiny_model_dir(tmp_path / "toy")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools[0].name }}"},
        {"name": "rag", "template": 1},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named}))
    turns = [{"role": "user", "content": "hi"}]

    def both():
        text = ModelText(folder)
        return [text.decode(text.encode_chat(turns, 512, tools=tools)) for tools in (None, [{"name": "f"}])]

    assert both() == ["plain", "f"]
    (folder / "chat_template.jinja").write_text("file")
    assert both() == ["file", "file"], "files win, and this one has no second"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("file with {{ tools[0].name }}")
    assert both() == ["file", "file with f"]


def test_a_template_of_the_admins_replaces_all_of_the_models(tmp_path):
    folder = tiny_model_dir(tmp_path / "toy")
    (tmp_path / "own.jinja").write_text("own")
    text = ModelText(folder, chat_template=tmp_path / "own.jinja")
    assert text.decode(text.encode_chat([{"role": "user", "content": "hi"}], 512)) == "own"
    with pytest.raises(ModelRejected, match=r"none\.jinja"):
        ModelText(folder, chat_template=tmp_path / "none.jinja")
