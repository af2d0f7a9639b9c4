"""Log-probabilities, echo and stops of a real replica (simulated device: its answers have log-probability 0), by the openai client."""

import openai
import pytest
from pagoda_daemon.simulated.device.worker import expected_tokens
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import VOCAB, tiny_model_dir
from support.servers.replica import NAME, replica_config, start_replica

HI = [{"role": "user", "content": "hi"}]
PROMPT = "Once upon a tîme"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    config = replica_config(tmp_path_factory.mktemp("logprobs"), engine={"token_budget": 16, "max_concurrency": 8})
    with start_replica(config) as replica, openai.OpenAI(base_url=f"http://{replica.http}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return ModelText(tiny_model_dir(tmp_path_factory.mktemp("text")))


def complete(client, **changes):
    return client.completions.create(**{"model": NAME, "prompt": PROMPT, "max_tokens": 6, **changes})


def bytes_of(content):
    return b"".join(bytes(entry.bytes) for entry in content)


def test_chat_logprobs_spell_the_answer_whole_and_streamed(client):
    asked = {"model": NAME, "messages": HI, "max_tokens": 9, "logprobs": True, "top_logprobs": 3}
    choice = client.chat.completions.create(**asked).choices[0]
    content = choice.logprobs.content
    assert [(entry.logprob, len(entry.top_logprobs)) for entry in content] == [(0.0, 3)] * 9
    assert all(entry.top_logprobs[0].token == entry.token for entry in content)
    assert bytes_of(content).decode(errors="replace") == choice.message.content
    with client.chat.completions.create(**asked, stream=True) as stream:
        chunks = [chunk.choices[0] for chunk in stream]
    assert [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content] == content
    assert "".join(chunk.delta.content or "" for chunk in chunks) == choice.message.content


def test_without_the_wish_there_are_none(client):
    assert complete(client).choices[0].logprobs is None
    assert client.chat.completions.create(model=NAME, messages=HI, max_tokens=2).choices[0].logprobs is None


@pytest.mark.parametrize("max_tokens", [0, 1, 6])
@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echo_scores_the_prompt_as_lm_eval_reads_it(client, text, max_tokens, as_ids):
    ids = text.encode(PROMPT, 512)
    answer = complete(client, prompt=[list(ids)] if as_ids else PROMPT, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0)
    choice, said = answer.choices[0], expected_tokens(ids, max_tokens, VOCAB)
    assert choice.text == PROMPT + text.decode(said)
    found = choice.logprobs
    assert {len(column) for column in (found.text_offset, found.token_logprobs, found.tokens, found.top_logprobs)} == {
        len(ids) + max_tokens
    }
    assert found.token_logprobs == [None, *[-9999.0] * (len(ids) - 1), *[0.0] * max_tokens]
    assert found.top_logprobs[0] is None
    assert all(list(top) == [token] for top, token in list(zip(found.top_logprobs, found.tokens, strict=True))[1:])
    assert [found.text_offset[at] for at in range(8)] == list(range(8))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, choice.finish_reason) == (len(ids), max_tokens, "length")


def test_an_echo_can_be_streamed_and_comes_without_scores_unless_wanted(client, text):
    with complete(client, echo=True, stream=True, logprobs=0) as stream:
        chunks = [chunk.choices[0] for chunk in stream]
    whole = complete(client, echo=True, logprobs=0).choices[0]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.tokens] == whole.logprobs.tokens
    plain = complete(client, echo=True).choices[0]
    assert (plain.text, plain.logprobs) == (whole.text, None)


def test_prompt_logprobs_come_as_vllm_writes_them(client, text):
    ids = text.encode(PROMPT, 512)
    choice = complete(client, extra_body={"prompt_logprobs": 1}).choices[0]
    assert choice.prompt_logprobs[0] is None
    assert [next(iter(entry)) for entry in choice.prompt_logprobs[1:]] == [str(token) for token in ids[1:]]
    chat = client.chat.completions.create(model=NAME, messages=HI, max_tokens=1, extra_body={"prompt_logprobs": 0})
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


def test_a_stop_string_is_cut_or_included_and_so_are_its_logprobs(client):
    whole = complete(client, max_tokens=12, logprobs=0).choices[0]
    stop = whole.text[9:13]
    cut = complete(client, max_tokens=12, logprobs=0, stop=[stop]).choices[0]
    assert (cut.text, cut.finish_reason) == (whole.text[: whole.text.find(stop)], "stop")
    assert cut.logprobs.tokens == [t for t, at in zip(whole.logprobs.tokens, whole.logprobs.text_offset, strict=True) if at < len(cut.text)]
    body = {"include_stop_str_in_output": True}
    assert complete(client, max_tokens=12, stop=[stop], extra_body=body).choices[0].text == cut.text + stop


def test_a_stop_id_ends_the_answer_and_is_shown_only_where_included(client, text):
    said = expected_tokens(text.encode(PROMPT, 512), 12, VOCAB)
    at = next(at for at in range(1, 12) if said[at] not in said[:at])
    body = {"stop_token_ids": [said[at]]}
    cut = complete(client, max_tokens=12, logprobs=0, extra_body=body)
    assert (cut.choices[0].text, cut.choices[0].finish_reason, cut.usage.completion_tokens) == (text.decode(said[:at]), "stop", at + 1)
    shown = complete(client, max_tokens=12, logprobs=0, extra_body=body | {"include_stop_str_in_output": True})
    assert (shown.choices[0].text, shown.usage.completion_tokens) == (text.decode(said[: at + 1]), at + 1)
    assert cut.choices[0].logprobs == shown.choices[0].logprobs, "the end token is listed either way, where its text would begin"
    assert len(cut.choices[0].logprobs.tokens) == at + 1
    assert cut.choices[0].logprobs.text_offset[-1] == len(cut.choices[0].text)
    with complete(client, max_tokens=12, logprobs=0, stream=True, extra_body=body) as stream:
        chunks = [chunk.choices[0] for chunk in stream]
    assert [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.tokens] == cut.choices[0].logprobs.tokens
    assert ("".join(chunk.text for chunk in chunks), chunks[-1].finish_reason) == (cut.choices[0].text, "stop")


def test_an_echo_whose_one_token_is_the_end_scores_the_whole_prompt_and_that_token(client, text):
    """lm-eval asks for one token and drops the last score: without the end token's it would drop the continuation's last."""
    ids = text.encode(PROMPT, 512)
    body = {"stop_token_ids": list(expected_tokens(ids, 1, VOCAB))}
    found = complete(client, echo=True, logprobs=1, max_tokens=1, temperature=0, extra_body=body)
    assert (found.choices[0].text, found.choices[0].finish_reason, found.usage.completion_tokens) == (PROMPT, "stop", 1)
    assert len(found.choices[0].logprobs.token_logprobs) == len(ids) + 1


@pytest.mark.parametrize(
    "body",
    [{"logit_bias": {str(VOCAB): 1}}, {"allowed_token_ids": [VOCAB]}, {"stop_token_ids": [-1]}],
    ids=lambda body: next(iter(body)),
)
def test_an_id_that_the_model_does_not_have_is_refused_by_name(client, body):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, extra_body=body)
    assert caught.value.param == next(iter(body))


def test_every_field_of_sampling_is_taken(client):
    fields = {
        "top_k": 5,
        "min_p": 0.1,
        "top_n_sigma": 1.5,
        "repetition_penalty": 1.1,
        "bad_words": ["never", "é"],
        "min_tokens": 2,
        "allowed_token_ids": [1, 2, 3],
        "stop_token_ids": [7],
        "include_stop_str_in_output": False,
    }
    answer = complete(client, frequency_penalty=0.5, presence_penalty=0.5, logit_bias={"5": -100}, seed=1, top_p=0.9, extra_body=fields)
    assert answer.choices[0].finish_reason in ("length", "stop")
