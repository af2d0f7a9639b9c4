"""Reproducers of advisories about what a request's fields may say: numbers, ids, fan-out, and fields that are not for clients."""

from __future__ import annotations

from support.judges.refusals import CHAT, all_refused, chat, completion, raw_json


async def test_the_number_of_answers_is_capped() -> None:
    for error in await all_refused(completion(n=1000), completion(n=2**62), completion(n=-1), completion(n=True)):
        assert error["param"] == "n"


async def test_min_tokens_cannot_outlive_max_tokens() -> None:
    for error in await all_refused(completion(min_tokens=5), completion(min_tokens=2**62, max_tokens=2**31 - 1)):
        assert error["param"] == "min_tokens"


async def test_no_tokens_at_all_is_no_generation() -> None:
    (error,) = await all_refused(completion(max_tokens=0))
    assert error["param"] == "max_tokens"


async def test_numbers_that_are_none_are_refused() -> None:
    literals = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999")
    await all_refused(*(raw_json(f'"temperature":{literal}') for literal in literals))


async def test_many_prompts_in_one_request_are_capped() -> None:
    (error,) = await all_refused(completion(prompt=["x"] * 2000))
    assert error["param"] == "prompt"


async def test_a_cache_salt_is_not_a_clients_to_choose() -> None:
    for error in await all_refused(completion(cache_salt="x" * 2**20), completion(cache_salt="x")):
        assert (error["param"], error["code"]) == ("cache_salt", "unsupported_parameter")


async def test_a_cache_salt_of_a_path_reaches_nothing() -> None:
    await all_refused(completion(cache_salt="../" * 100), completion(cache_salt="/" * 129), chat(cache_salt="a/b"))


async def test_token_ids_outside_of_the_vocabulary_are_refused() -> None:
    wrong = (-1, -(2**31), 1026, 2**31, 2**63, 10**30)
    await all_refused(*(completion(prompt=[1, one]) for one in wrong), *(completion(stop_token_ids=[one]) for one in wrong))


async def test_an_empty_prompt_is_refused() -> None:
    await all_refused(completion(prompt=""), completion(prompt=[]), completion(prompt=[[]]), completion(prompt=[""]))


async def test_tensors_in_a_request_are_refused_unread() -> None:
    for error in await all_refused(completion(prompt_embeds="gAN="), completion(prompt_embeds=["gAN="])):
        assert error["code"] == "unsupported_parameter"


async def test_a_logit_processor_of_the_clients_own_is_refused_unread() -> None:
    for error in await all_refused(completion(custom_logit_processor="80049524000000"), completion(logits_processors=["os.system"])):
        assert error["code"] in ("unknown_parameter", "unsupported_parameter")


async def test_transfer_fields_are_internal() -> None:
    params = {"do_remote_prefill": True, "remote_engine_id": "x", "remote_block_ids": [0], "remote_host": "127.0.0.1", "remote_port": 1}
    for error in await all_refused(completion(kv_transfer_params=params), completion(kv_transfer_params=None)):
        assert error["code"] == "unsupported_parameter"


async def test_transfer_fields_are_internal_in_a_chat_too() -> None:
    params = {"do_remote_decode": True, "transfer_id": "x"}
    nested = chat(messages=[{"role": "user", "content": "hi", "kv_transfer_params": params}])
    await all_refused(chat(kv_transfer_params=params), chat(stream_options={"kv_transfer_params": params}, stream=True), nested, path=CHAT)


async def test_a_template_in_a_request_is_refused_unread() -> None:
    (error,) = await all_refused(chat(chat_template="{% for i in range(10**9) %}x{% endfor %}"), path=CHAT)
    assert error["code"] == "unsupported_parameter"


async def test_arguments_of_the_templates_own_functions_are_refused() -> None:
    (error,) = await all_refused(chat(chat_template_kwargs={"tokenize": True, "chat_template": "{{ 0 }}"}), path=CHAT)
    assert error["code"] == "unsupported_parameter"


async def test_arguments_for_processors_are_refused() -> None:
    await all_refused(chat(mm_processor_kwargs={"code_revision": "main", "trust_remote_code": True}), path=CHAT)


async def test_a_key_that_is_there_twice_is_refused() -> None:
    (first, second) = await all_refused(raw_json('"model":"other"'), raw_json('"stream_options":{"a":1,"a":2}'))
    assert (first["code"], second["code"]) == ("duplicate_key", "duplicate_key")


async def test_json_that_is_none_is_refused() -> None:
    depth = 100_000
    await all_refused(
        raw_json('"x":' + "[" * depth + "]" * depth),
        raw_json('"x":' + '{"a":' * depth + "1" + "}" * depth),
        raw_json('"prompt":"\\ud800"'),
        raw_json('"seed":' + "9" * 100_000),
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{} {}",
    )


async def test_roles_are_those_that_are_known() -> None:
    wrong = ("tools", "System", "", "x" * 10_000, "<|im_start|>system", 0, None, ["user"])
    await all_refused(*(chat(messages=[{"role": role, "content": "hi"}]) for role in wrong), path=CHAT)


async def test_caps_name_themselves_and_say_what_is_accepted() -> None:
    errors = await all_refused(
        completion(stop=["x"] * 65),
        completion(stop="x" * 300),
        completion(logprobs=101),
        completion(logit_bias={str(n): 1 for n in range(1025)}),
        completion(prompt="x" * 510, max_tokens=8),
    )
    assert [error["param"] for error in errors] == ["stop", "stop", "logprobs", "logit_bias", "max_tokens"]
    assert "6 too many" in errors[-1]["message"]
