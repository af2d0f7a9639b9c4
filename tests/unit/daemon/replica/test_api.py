"""A real replica (real processes, simulated device) asked by the real openai client and by raw HTTP."""

import base64
import json
import re
import threading
import time
from unittest.mock import ANY

import httpx
import openai
import pytest
from pagoda_contracts.names import HEADER_IGNORED, HEADER_REQUEST_ID, HEADER_SHOULD_RETRY
from pagoda_daemon.simulated.device.worker import STATE, expected_tokens
from pagoda_daemon.text.tokens import ChatShape, ModelText
from support.engine.toy_model import EOS, VOCAB, tiny_model_dir
from support.servers.replica import NAME, PATIENCE_S, replica_config, start_replica

CONTEXT = 512
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def replica(tmp_path_factory):
    with start_replica(replica_config(tmp_path_factory.mktemp("front"), names=(NAME, "alias"))) as started:
        yield started


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return ModelText(tiny_model_dir(tmp_path_factory.mktemp("text")))


def said(text, prompt, count):
    """What the simulated device says after these ids."""
    return text.decode(expected_tokens(prompt, count, VOCAB))


def frames(body):
    assert body.endswith("\n\n")
    parts = body.removesuffix("\n\n").split("\n\n")
    assert all(part.startswith("data: ") for part in parts)
    return [part.removeprefix("data: ") for part in parts]


def running(http):
    return float(re.search(r"^vllm:num_requests_running\{[^}]*} ([0-9.]+)$", http.get("/metrics").text, re.MULTILINE)[1])


def wait_until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_chat_gives_the_devices_text_and_its_usage(client, text):
    answer = client.chat.completions.create(model=NAME, messages=HI, max_completion_tokens=12, extra_body={"ignore_eos": True})
    prompt = text.encode_chat(HI, CONTEXT)
    assert answer.choices[0].message.content == said(text, prompt, 12)
    assert answer.choices[0].finish_reason == "length"
    assert answer.id.startswith("chatcmpl-")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (len(prompt), 12, len(prompt) + 12)


def test_a_chat_stream_says_the_same_as_the_whole(client, text):
    options = {"include_usage": True}
    with client.chat.completions.create(model="alias", messages=HI, max_tokens=12, stream=True, stream_options=options) as stream:
        chunks = list(stream)
    whole = client.chat.completions.create(model="alias", messages=HI, max_tokens=12)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert {chunk.model for chunk in chunks} == {"alias"}


@pytest.mark.parametrize("prompt", ["Once", ["Once"], [79, 110, 99, 101]])
def test_completions_take_text_or_ids(client, text, prompt):
    answer = client.completions.create(model=NAME, prompt=prompt, extra_body={"ignore_eos": True})
    assert answer.choices[0].text == said(text, text.encode("Once", CONTEXT), 16)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [["Once", "upon", "Once"], [[79, 110], [1, 2, 3]]])
def test_several_prompts_with_several_answers_each_are_indexed_as_openai_does(client, text, prompts, stream):
    asked = {"model": NAME, "prompt": prompts, "n": 2, "max_tokens": 5, "extra_body": {"ignore_eos": True}}
    expected = [said(text, text.encode(p, CONTEXT) if isinstance(p, str) else p, 5) for p in prompts for _ in range(2)]
    if not stream:
        answer = client.completions.create(**asked)
        assert [choice.index for choice in answer.choices] == list(range(len(expected)))
        assert [choice.text for choice in answer.choices] == expected
        assert answer.usage.prompt_tokens == sum(map(len, prompts))
        assert answer.usage.completion_tokens == 5 * len(expected)
        return
    texts, reasons = [""] * len(expected), {}
    with client.completions.create(**asked, stream=True) as chunks:
        for chunk in chunks:
            (choice,) = chunk.choices
            texts[choice.index] += choice.text
            if choice.finish_reason:
                assert reasons.setdefault(choice.index, choice.finish_reason) == "length"
    assert (texts, len(reasons)) == (expected, len(expected))


def test_a_chat_with_several_answers_opens_and_ends_each(client, text):
    asked = {"model": NAME, "messages": HI, "n": 3, "max_tokens": 4, "extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**asked)
    expected = said(text, text.encode_chat(HI, CONTEXT), 4)
    assert [(choice.index, choice.message.content) for choice in whole.choices] == [(index, expected) for index in range(3)]
    with client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
        *chunks, last = list(stream)
    assert [chunk.choices[0].index for chunk in chunks if chunk.choices[0].delta.role] == [0, 1, 2]
    assert sorted(chunk.choices[0].index for chunk in chunks if chunk.choices[0].finish_reason) == [0, 1, 2]
    assert last.usage == whole.usage
    assert last.usage.completion_tokens == 12


def test_a_completion_stream_joins_to_the_whole(client):
    with client.completions.create(model=NAME, prompt="p", max_tokens=20, stream=True) as stream:
        joined = "".join(chunk.choices[0].text for chunk in stream)
    assert joined == client.completions.create(model=NAME, prompt="p", max_tokens=20).choices[0].text


def test_generation_ends_at_a_stop_string_and_informs_the_engine(client, http, text):
    expected = said(text, text.encode("p", CONTEXT), 200)
    stop = expected[20:29]
    answer = client.completions.create(model=NAME, prompt="p", max_tokens=200, stop=["never", stop], extra_body={"ignore_eos": True})
    assert answer.choices[0].text == expected[: expected.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens < 100
    wait_until(lambda: running(http) == 0)


def test_eos_ends_generation_unless_it_is_ignored(client):
    streams = (([n % 256, n // 256], expected_tokens([n % 256, n // 256], 30, VOCAB)) for n in range(4096))
    prompt, at = next((prompt, tokens.index(EOS)) for prompt, tokens in streams if EOS in tokens[1:])
    answer = client.completions.create(model=NAME, prompt=prompt, max_tokens=30)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("stop", at + 1)
    answer = client.completions.create(model=NAME, prompt=prompt, max_tokens=30, extra_body={"ignore_eos": True})
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 30)


def test_sse_framing_is_byte_for_byte_what_clients_expect(http, text):
    body = {"model": NAME, "messages": HI, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    *events, done = frames(answer.text)
    assert done == "[DONE]"
    parsed = [json.loads(event) for event in events]
    common = {key: parsed[0][key] for key in ("id", "object", "created", "model", "system_fingerprint")}
    assert common["object"] == "chat.completion.chunk"
    prompt = len(text.encode_chat(HI, CONTEXT))

    def chunk(delta, finish=None):
        return {**common, "choices": [{"delta": delta, "finish_reason": finish, "index": 0, "logprobs": None}], "usage": None}

    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": 2,
        "total_tokens": prompt + 2,
        "prompt_tokens_details": {"cached_tokens": ANY},
        "completion_tokens_details": dict.fromkeys(("reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"), 0),
    }
    texts = [event["choices"][0]["delta"] for event in parsed[1:-2]]
    assert "".join(delta["content"] for delta in texts) == said(text, text.encode_chat(HI, CONTEXT), 2)
    assert [parsed[0], *parsed[-2:]] == [
        chunk({"role": "assistant", "content": ""}),
        chunk({}, "length"),
        {**common, "choices": [], "usage": usage},
    ]


def test_usage_is_absent_from_chunks_unless_asked_for(http):
    answer = http.post("/v1/completions", json={"model": NAME, "prompt": "p", "max_tokens": 3, "stream": True})
    assert all("usage" not in json.loads(event) for event in frames(answer.text)[:-1])


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"model": "other", "prompt": "x"}, 404, "model_not_found", None),
        ({"model": NAME, "prompt": ""}, 400, "invalid_value", "prompt"),
        ({"model": NAME, "prompt": [-1]}, 400, "invalid_value", "prompt"),
        ({"model": NAME, "prompt": [VOCAB]}, 400, "invalid_value", "prompt"),
        ({"model": NAME, "prompt": "x", "best_of": 3, "stream": True}, 400, "invalid_value", "best_of"),
        ({"model": NAME, "prompt": "x", "temperature": 900}, 400, "invalid_value", "temperature"),
        ({"model": NAME, "prompt": "x" * 500, "max_tokens": 20}, 400, "context_length_exceeded", "max_tokens"),
        ({"model": NAME, "prompt": "x" * 40_000}, 400, "context_length_exceeded", "prompt"),
        ({"model": NAME}, 400, "invalid_value", "prompt"),
    ],
)
def test_refusals_have_openais_shape_and_string_codes(http, body, status, code, param):
    answer = http.post("/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"], error["type"]) == (status, code, param, "invalid_request_error")
    assert HEADER_SHOULD_RETRY not in answer.headers
    assert running(http) == 0


def test_a_context_that_is_exceeded_says_by_how_many(client):
    with pytest.raises(openai.BadRequestError, match="8 too many") as caught:
        client.completions.create(model=NAME, prompt="x" * 500, max_tokens=20)
    assert caught.value.code == "context_length_exceeded"


def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_its_length(http):
    answer = http.post("/v1/completions", content=b"x" * (16 * 2**20 + 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    answer = http.post("/v1/completions", content=(b"x" * 2**20 for _ in range(17)))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def test_unknown_paths_and_methods_have_the_same_shape(http):
    for answer, status in ((http.get("/nope"), 404), (http.get("/v1/completions"), 405)):
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")
        assert re.fullmatch("[0-9a-f]{32}", answer.headers[HEADER_REQUEST_ID])


def test_request_ids_are_made_here_and_a_sane_one_is_echoed_in_the_header_only(http):
    body = {"model": NAME, "prompt": "x", "max_tokens": 1}
    own = http.post("/v1/completions", json=body)
    assert own.json()["id"] == "cmpl-" + own.headers[HEADER_REQUEST_ID]
    named = http.post("/v1/completions", json=body, headers={HEADER_REQUEST_ID: "trace-7"})
    assert named.headers[HEADER_REQUEST_ID] == "trace-7"
    assert "trace-7" not in named.text
    hostile = http.post("/v1/completions", json=body, headers={HEADER_REQUEST_ID: "a b<script>"})
    assert re.fullmatch("[0-9a-f]{32}", hostile.headers[HEADER_REQUEST_ID])


def test_models_health_version(client, http):
    assert [(card.id, card.root, card.max_model_len) for card in client.models.list()] == [(NAME, NAME, 512), ("alias", NAME, 512)]
    assert client.models.retrieve("alias").id == "alias"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    assert (http.get("/health").status_code, http.get("/health").content) == (200, b"")
    assert http.get("/version").json()["version"]


def test_tokenize_and_detokenize_speak_vllms_shapes(http, text):
    ids = text.encode("Once é", CONTEXT)
    answer = http.post("/tokenize", json={"model": NAME, "prompt": "Once é", "return_token_strs": True}).json()
    assert (answer["count"], answer["max_model_len"], answer["tokens"]) == (len(ids), CONTEXT, list(ids))
    assert answer["token_strs"] == ["O", "n", "c", "e", " ", "bytes:\\xc3", "bytes:\\xa9"]
    chat = http.post("/tokenize", json={"messages": HI, "add_generation_prompt": False}).json()
    assert chat["tokens"] == list(text.encode_chat(HI, CONTEXT, ChatShape(answer_follows=False)))
    assert chat["token_strs"] is None
    assert http.post("/detokenize", json={"tokens": [*ids, EOS]}).json() == {"prompt": "Once é<|im_end|>"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HI}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": HI, "add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"prompt": "x", "chat_template": "y"}, "chat_template"),
        ("/detokenize", {"tokens": [VOCAB]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_what_cannot_be_tokenised_is_refused_by_name(http, path, body, param):
    answer = http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_message_can_be_left_open_or_continued(client, text):
    turns = [*HI, {"role": "assistant", "content": "Once "}]
    shape = ChatShape(answer_follows=False, continue_last=True)
    prompt = text.encode_chat(turns, CONTEXT, shape)
    assert text.decode(prompt, skip_special=False).endswith("<|im_start|>assistant\nOnce ")
    body = {"continue_final_message": True, "ignore_eos": True}
    answer = client.chat.completions.create(model=NAME, messages=turns, max_tokens=6, extra_body=body)
    assert (answer.choices[0].message.content, answer.usage.prompt_tokens) == (said(text, prompt, 6), len(prompt))
    body = {"add_generation_prompt": False, "ignore_eos": True}
    answer = client.chat.completions.create(model=NAME, messages=HI, max_tokens=6, extra_body=body)
    assert answer.choices[0].message.content == said(text, text.encode_chat(HI, CONTEXT, ChatShape(answer_follows=False)), 6)


def test_special_tokens_are_shown_where_wanted(client, text):
    streams = (([n % 256, n // 256], expected_tokens([n % 256, n // 256], 12, VOCAB)) for n in range(4096))
    prompt, tokens = next((prompt, tokens) for prompt, tokens in streams if EOS in tokens)
    for skip in (True, False):
        body = {"ignore_eos": True, "skip_special_tokens": skip}
        answer = client.completions.create(model=NAME, prompt=prompt, max_tokens=12, extra_body=body)
        assert answer.choices[0].text == text.decode(tokens, skip_special=skip)
        assert ("<|im_end|>" in answer.choices[0].text) is not skip


def test_load_counts_requests_and_the_document_is_served(http):
    assert http.get("/load").json() == {"server_load": 0}
    assert http.get("/openapi.json").json()["paths"].keys() >= {"/v1/chat/completions", "/tokenize"}


def test_the_cached_part_of_a_prompt_is_reported(client):
    prompt = "a beginning that fills blocks, more than one or two of them"
    options = {"stream": True, "stream_options": {"include_usage": True}}
    first = client.completions.create(model=NAME, prompt=prompt, max_tokens=2)
    again = client.completions.create(model=NAME, prompt=[prompt, prompt], n=2, max_tokens=2)
    with client.completions.create(model=NAME, prompt=prompt, max_tokens=2, **options) as stream:
        *_, last = list(stream)
    known = [answer.usage.prompt_tokens_details.cached_tokens for answer in (first, again, last)]
    assert known[0] == 0
    assert 48 <= known[2] < len(prompt)
    assert known[1] == 2 * known[2]


def test_many_streams_at_once_each_equal_their_single_run(replica, text):
    prompts = [[n + 1, 2 * n + 1] for n in range(32)]
    out: dict[int, str] = {}

    def ask(n):
        body = {"model": NAME, "prompt": prompts[n], "max_tokens": 30, "stream": True, "ignore_eos": True}
        answer = httpx.post(f"http://{replica.http}/v1/completions", json=body, timeout=PATIENCE_S)
        out[n] = "".join(json.loads(event)["choices"][0]["text"] for event in frames(answer.text)[:-1])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == {n: said(text, prompts[n], 30) for n in range(32)}


def test_first_tokens_and_finishes_are_counted(http):
    def counts():
        body = http.get("/metrics").text
        found = re.findall(
            r'^vllm:(request_success_total\{.*reason="length".*|time_to_first_token_seconds_count.*)} ([0-9.]+)$', body, re.MULTILINE
        )
        return [float(value) for _, value in found]

    http.post("/v1/completions", json={"model": NAME, "prompt": "x", "max_tokens": 1, "ignore_eos": True})
    before = counts()
    http.post("/v1/completions", json={"model": NAME, "prompt": "x", "max_tokens": 1, "ignore_eos": True})
    assert counts() == [value + 1 for value in before]
    assert len(before) == 2


def state_of(ids):
    """What the simulated device's states come to."""
    counts = [sum(token % STATE == kind for token in ids) for kind in range(STATE)]
    length = sum(count * count for count in counts) ** 0.5
    return [pytest.approx(count / length, abs=1e-6) for count in counts]


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_embeddings_are_pooled_states_in_the_order_of_the_inputs(client, form):
    inputs = ["Once upon a time, longer than one block of tokens", "é", "Once"]
    asked = {"encoding_format": form} if form else {}
    for pooling, taken in (("mean", slice(None)), ("last", slice(-1, None))):
        answer = client.embeddings.create(model=NAME, input=inputs, extra_body={"pooling": pooling}, **asked)
        assert [entry.index for entry in answer.data] == [0, 1, 2]
        vectors = [
            entry.embedding if isinstance(entry.embedding, list) else list(memoryview(base64.b64decode(entry.embedding)).cast("f"))
            for entry in answer.data
        ]
        assert vectors == [state_of(text.encode()[taken]) for text in inputs]
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(text.encode()) for text in inputs)
    one = client.embeddings.create(model=NAME, input=[79, 110], encoding_format="float")
    assert one.data[0].embedding == state_of([110])


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"input": []}, "input", "invalid_value"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": ["x", ""]}, "input", "invalid_value"),
        ({"input": [VOCAB]}, "input", "invalid_value"),
        ({"input": ["x", 1]}, "input", "invalid_value"),
        ({"input": ["x"] * 2049}, "input", "invalid_value"),
        ({"input": "x" * CONTEXT}, "input", "context_length_exceeded"),
        ({"dimensions": 10**6}, "dimensions", "invalid_value"),
        ({"pooling": "cls"}, "pooling", "invalid_value"),
        ({"encoding_format": "int8"}, "encoding_format", "invalid_value"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(http, changes, param, code):
    answer = http.post("/v1/embeddings", json={"model": NAME, "input": "x", **changes})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 1, "stream": True}),
        ("/v1/embeddings", {"input": "a"}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [5]}),
    ],
)
def test_an_unknown_field_is_named_by_a_header(http, path, body):
    found = http.post(path, json={"model": NAME, "moderation": {"x": 1}, **body})
    assert (found.status_code, found.headers[HEADER_IGNORED]) == (200, "moderation")
    assert HEADER_IGNORED not in http.post(path, json={"model": NAME, **body}).headers
