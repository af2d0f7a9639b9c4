"""Text and token ids: incremental detokenisation, stop strings, chat templates, what generation_config.json says."""

import json
import sys
import threading
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_daemon.api.routes.texts import DetokenizeRequest, detokenize
from pagoda_daemon.core.errors import BadRequest, ModelRejected
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.text.spelling import Speller
from pagoda_daemon.text.stops import StopMatcher
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import BOS, EOS, VOCAB, tiny_model_dir
from tokenizers import AddedToken, Tokenizer, decoders, models

CONTEXT = 512
PATIENCE_S = 300.0
UNREADABLE = object()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return ModelText(tiny_model_dir(tmp_path_factory.mktemp("model") / "toy"))


def fallback_tokenizer():
    """As Llama 2 has it: words with ▁, and a token for each byte."""
    words = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁upon": 257, "▁a": 258, "time": 259, "é": 260}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], byte_fallback=True, unk_token="<unk>"))
    strip = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


@given(st.lists(st.text("ab", max_size=4), max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_text_is_cut_before_the_first_stop_string_however_it_is_pushed(parts, stops):
    matcher = StopMatcher(stops)
    out = ""
    for part in parts:
        out += matcher.push(part)
        assert not any(stop in out for stop in stops)
    out += matcher.flush()
    whole = "".join(parts)
    assert matcher.stopped == any(stop in whole for stop in stops)
    ends = [(at + len(stop), at) for stop in stops for at in range(len(whole)) if whole.startswith(stop, at)]
    assert out == whole[: min(ends)[1] if ends else len(whole)]
    assert matcher.matched == (whole[min(ends)[1] : min(ends)[0]] if ends else None)
    including = StopMatcher(stops, include=True)
    assert "".join(including.push(part) for part in parts) + including.flush() == whole[: min(ends)[0] if ends else len(whole)]


def test_nothing_that_cannot_become_a_stop_string_is_held_back():
    matcher = StopMatcher(["\nUser:"])
    assert [matcher.push(part) for part in ("Hello", "\nUs", "ed", "\nUser", ":rest")] == ["Hello", "", "\nUsed", "", ""]
    assert matcher.stopped


def test_tokens_are_spelled_as_the_bytes_that_make_the_text(text):
    ids = text.encode("héllo wörld 🎉", CONTEXT)
    assert b"".join(map(text.spell, ids)) == "héllo wörld 🎉".encode()
    assert (text.spell(EOS), text.spell(300), text.spell(VOCAB + 7)) == (b"<|im_end|>", b" w300", b"")
    spell = Speller(fallback_tokenizer())
    assert [spell(at) for at in (0x20 + 1, 0xC3 + 1, 257, 259, 260, 261)] == [b" ", b"\xc3", b" upon", b"time", "é".encode(), b"<s>"]


def test_a_conversation_is_rendered_by_the_models_own_template(text):
    ids = text.encode_chat([{"role": "user", "content": "hi"}], CONTEXT)
    assert text._tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nhi<|im_end|><|im_start|>assistant\n"


def test_a_template_file_wins_and_has_hugging_faces_helpers(tmp_path):
    directory = tiny_model_dir(tmp_path)
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}{% endfor %}{{ strftime_now('%Y')[:2] }}"
    )
    (directory / "chat_template.jinja").write_text(template)
    text = ModelText(directory)
    ids = text.encode_chat([{"role": "user", "content": "<é>"}, {"role": "user", "content": "no"}], CONTEXT)
    assert text.decode(ids) == '{"role": "user", "content": "<é>"}20'
    with pytest.raises(BadRequest, match="no system here"):
        text.encode_chat([{"role": "system", "content": "x"}], CONTEXT)


def test_a_template_cannot_reach_python(tmp_path):
    directory = tiny_model_dir(tmp_path)
    (directory / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(BadRequest, match="unsafe"):
        ModelText(directory).encode_chat([{"role": "user", "content": "x"}], CONTEXT)


def test_without_a_template_chat_is_refused_and_says_what_works(tmp_path):
    directory = tiny_model_dir(tmp_path)
    (directory / "tokenizer_config.json").write_text("{}")
    with pytest.raises(BadRequest, match="/v1/completions"):
        ModelText(directory).encode_chat([{"role": "user", "content": "x"}], CONTEXT)


class NoTokenizer:
    """Fails where a text is tokenised that could have been refused unread."""

    def encode_batch_fast(self, *_args, **_options):
        raise AssertionError("tokenised")


def test_a_text_that_no_tokens_of_the_context_can_hold_is_refused_before_it_is_tokenised(tmp_path):
    text = ModelText(tiny_model_dir(tmp_path))
    text._tokenizer = NoTokenizer()
    most = 10 * len("<|im_start|>")
    for ask in (lambda size: text.encode("x" * size, 10), lambda size: text.encode_chat([{"role": "user", "content": "x" * size}], 10)):
        with pytest.raises(BadRequest, match="maximum context length is 10 tokens") as caught:
            ask(most + 1)
        assert caught.value.code == "context_length_exceeded"
    with pytest.raises(AssertionError, match="tokenised"):
        text.encode("x" * most, 10)


def others_run_during(work):
    """Whether another thread gets its turns in the midst of it. Nobody is made to hand the interpreter over meanwhile: only work that lets
    go of it lets one in. Done again where the machine held the other thread up for just that long."""
    turns, ended, interval = 0, threading.Event(), sys.getswitchinterval()

    def turn():
        nonlocal turns
        while not ended.wait(0.001):
            turns += 1

    other = threading.Thread(target=turn)
    other.start()
    sys.setswitchinterval(600.0)
    try:
        deadline, found = time.monotonic() + PATIENCE_S, 0
        while found <= 5 and time.monotonic() < deadline:
            before = turns
            work()
            found = turns - before
        return found > 5
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        other.join()


def test_other_threads_run_while_a_text_is_tokenised(text):
    assert others_run_during(lambda: text.encode("hello " * 100_000, 600_000)), "encoding kept the interpreter's lock"
    assert len(text.encode("hello " * 100_000, 600_000)) == 600_000


def test_other_threads_run_while_many_ids_are_shown(text):
    ids, found = [ord("a")] * 500_000, []
    shown = partial(detokenize, DetokenizeRequest(tokens=ids), text, Ready(512, VOCAB, 16, 64, 4), ())
    assert others_run_during(lambda: found.append(shown())), "decoding kept the interpreter's lock"
    assert found[0].prompt == text.decode(ids, skip_special=False) == "a" * 500_000


def test_a_raw_prompt_gets_the_special_ids_of_the_post_processor_and_a_conversation_does_not(tmp_path):
    directory = tiny_model_dir(tmp_path)
    content = json.loads((directory / "tokenizer.json").read_text())
    single = [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    ids = {"<|im_start|>": {"id": "<|im_start|>", "ids": [BOS], "tokens": ["<|im_start|>"]}}
    content["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": ids}
    (directory / "tokenizer.json").write_text(json.dumps(content))
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    text = ModelText(directory)
    assert text.encode("a", CONTEXT) == (BOS, ord("a"))
    assert text.encode_chat([{"role": "user", "content": "a"}], CONTEXT) == (ord("a"),)


@pytest.mark.parametrize(
    ("generation", "model", "expected"),
    [
        ({"eos_token_id": 7}, {"eos_token_id": 8}, (7,)),
        ({"eos_token_id": [7, 9]}, {}, (7, 9)),
        ({}, {"eos_token_id": 8}, (8,)),
        ({}, {}, (EOS,)),
    ],
)
def test_stop_ids_come_from_generation_config_then_config_then_the_tokenizer(tmp_path, generation, model, expected):
    directory = tiny_model_dir(tmp_path)
    (directory / "generation_config.json").write_text(json.dumps(generation))
    (directory / "config.json").write_text(json.dumps(model))
    assert ModelText(directory).stop_ids == expected


def test_sampling_defaults_come_from_generation_config(tmp_path):
    assert ModelText(tiny_model_dir(tmp_path / "a")).defaults == {}
    asked = {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    assert ModelText(tiny_model_dir(tmp_path / "b", **asked)).defaults == asked
    qwen = ModelText(tiny_model_dir(tmp_path / "d", repetition_penalty=1.05, min_p=0.1))
    assert qwen.defaults == {"min_p": 0.1, "repetition_penalty": 1.05}
    whole = ModelText(tiny_model_dir(tmp_path / "c", top_k=50.0)).defaults["top_k"]
    assert (whole, type(whole)) == (50, int)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("config.json", "[]", "config.json is not a JSON object"),
        ("config.json", "{", "config.json is not JSON"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id: 'x'"),
        ("generation_config.json", '{"temperature": true}', "temperature must be a number of at least 0, got True"),
        ("generation_config.json", '{"top_k": 50.5}', "top_k must be a whole number, got 50.5"),
        ("generation_config.json", '{"repetition_penalty": 0}', "repetition_penalty must be above 0, got 0"),
        ("generation_config.json", '{"top_k": Infinity}', "top_k must be a number of at least 0, got inf"),
        ("generation_config.json", '{"temperature": NaN}', "temperature must be a number of at least 0, got nan"),
        ("generation_config.json", UNREADABLE, "generation_config.json in .* cannot be read"),
        ("config.json", b"\xff", "config.json in .* cannot be read"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja in .* cannot be read"),
        ("chat_template.jinja", "{% if %}", "chat template"),
        ("tokenizer_config.json", '{"chat_template": {}}', "chat_template must be a string or a list of objects, got {}"),
        ("tokenizer_config.json", '{"chat_template": 7}', "chat_template must be a string or a list of objects, got 7"),
        ("tokenizer_config.json", '{"chat_template": ["x"]}', "chat_template is a list"),
        ("tokenizer_config.json", '{"chat_template": [{"name": []}]}', "chat_template is a list"),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": "default", "template": 1}]}',
            "chat_template must be a string or a list of objects, got 1",
        ),
        ("tokenizer_config.json", '{"bos_token": 7}', "a special token must be a string, got 7"),
    ],
)
def test_an_unreadable_model_is_rejected_by_file(tmp_path, name, content, said):
    directory = tiny_model_dir(tmp_path)
    (directory / name).unlink(missing_ok=True)
    if content is UNREADABLE:
        (directory / name).symlink_to("/proc/self/mem")  # a file, and reading it is an OSError
    elif content is not None:
        (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelRejected, match=said):
        ModelText(directory)


def test_many_who_warm_one_text_compile_its_template_once_and_wait_for_it_however_long(tmp_path, monkeypatch):
    """A template's processes take few at a time, and who waits long for one is refused: a request may be, the start of a front not."""
    text = ModelText(tiny_model_dir(tmp_path))
    begun, go_on, compiled = threading.Event(), threading.Event(), []

    def slow():
        compiled.append(threading.current_thread())
        begun.set()
        assert go_on.wait(300)

    monkeypatch.setattr(text._templates["default"], "check", slow)
    threads = [threading.Thread(target=text.warm) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert begun.wait(300)
    go_on.set()
    for thread in threads:
        thread.join(300)
    text.warm()
    assert len(compiled) == 1
