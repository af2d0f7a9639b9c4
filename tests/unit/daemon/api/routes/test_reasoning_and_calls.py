"""Reasoning and calls, streamed and whole, with the real openai client as the judge. The engine says what each test tells it to."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.api.http.app import Parts, application
from pagoda_daemon.api.routes.admission import Admission
from pagoda_daemon.api.routes.generation import Generator
from pagoda_daemon.core.messages import Ready, RowOutput, TokenLogprob
from pagoda_daemon.engine.stream import Stream
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Counts, Exposition
from pagoda_daemon.structured.compile import matcher_of
from pagoda_daemon.structured.vocabulary import read_vocabulary
from pagoda_daemon.text.template_worker import environment
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import EOS, VOCAB, tiny_model_dir

HI = [{"role": "user", "content": "hi"}]
TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}{{ tools | length }} tools\n{% endif %}assistant\n"
QWEN = TURNS + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{# <tool_call> </think> #}"
OPENING = TURNS + "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{# <tool_call> </think> #}"
CODER = TURNS + "{# <tool_call> <function= <parameter= #}"
HARMONY = "{% for m in messages %}{{ m.content }}{% endfor %}<|start|>assistant{# tools <|channel|> <|message|> #}"
HARMONY_MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
CALL = '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>'


def tool(name="f", **more):
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **more}}


class Engine:
    """Answers every choice with the tokens of `answer`; if it answers `later`, the first token comes before all others."""

    def __init__(self):
        self.tokens, self.submitted, self.later = [], [], False

    def submit(self, message, joined=None):
        self.submitted.append(message)
        stream = joined or Stream(message.request_id)
        scores = (TokenLogprob(-1.0, 1),) if message.sampling.logprobs is not None else ()
        rows = []
        for index in range(message.n):
            rows += [RowOutput(message.request_id, (token,), index=index, logprobs=scores) for token in self.tokens]
            rows.append(RowOutput(message.request_id, (EOS,), "stop", index=index, logprobs=scores))
        at_once = 1 if self.later else len(rows)
        for row in rows[:at_once]:
            stream.put(row)
        for row in rows[at_once:]:
            asyncio.get_running_loop().call_soon(stream.put, row)
        return stream

    def close_stream(self, request_id, *, finished):
        pass

    def abort_choice(self, request_id, index):
        pass


class Rendering:
    """In the place of the processes that render templates."""

    def __init__(self, template):
        self._template = environment().from_string(template)

    def render(self, variables, _most):
        return self._template.render(variables)


class Judge:
    """What the client makes of the answers of one model."""

    def __init__(self, engine, text, client, vocabulary, counts):
        self.engine, self.text, self.client, self.vocabulary, self.counts = engine, text, client, vocabulary, counts

    def says(self, answer, cut=None):
        ids = self.text.word_ids(answer)
        self.engine.tokens = ids[:cut]
        return len(self.engine.tokens)

    async def whole(self, **fields):
        return await self.client.chat.completions.create(**{"model": "m", "messages": HI, **fields})

    async def streamed(self, **fields):
        """The message that the deltas make, the reason, and the usage."""
        found, reason, usage = {"reasoning": "", "content": "", "calls": []}, None, None
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async with await self.whole(**options, **fields) as stream:
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    delta = choice.delta.model_dump()
                    assert delta.get("reasoning") == delta.get("reasoning_content")
                    found["reasoning"] += delta.get("reasoning") or ""
                    found["content"] += delta.get("content") or ""
                    for call in choice.delta.tool_calls or ():
                        if call.id:
                            found["calls"].append([call.function.name, ""])
                        found["calls"][call.index][1] += call.function.arguments
                    reason = choice.finish_reason or reason
        return found, reason, usage

    def bound(self):
        """The grammar of the last request, as the engine follows it."""
        grammar = self.engine.submitted[-1].grammar
        return None if grammar is None else lambda text: self._follows(grammar, text)

    def _follows(self, grammar, text):
        matcher = matcher_of(self.vocabulary, grammar.kind, grammar.text)
        tokens = self.text.word_ids(text)
        return matcher.try_consume_tokens(list(tokens)) == len(tokens) and matcher.is_accepting()


@pytest.fixture
def model(tmp_path):
    @asynccontextmanager
    async def made(template, marks=(), special=True, **parsers):
        folder = tiny_model_dir(tmp_path / "model")
        config = json.loads((folder / "tokenizer.json").read_text())
        for number, mark in enumerate(marks, 300):
            del config["model"]["vocab"][f"Ġw{number}"]
            config["model"]["vocab"][mark] = number
            config["added_tokens"].append({**config["added_tokens"][0], "id": number, "content": mark, "special": special})
        config["added_tokens"].sort(key=lambda token: token["id"])
        (folder / "tokenizer.json").write_text(json.dumps(config))
        (tmp_path / "template.jinja").write_text(template)
        text = ModelText(folder, chat_template=tmp_path / "template.jinja", **parsers)
        text._templates = {"default": Rendering(template)}
        engine, replica = Engine(), Replica(born=0.0, phase=Phase.PHASE_READY, limits=Ready(4096, 1024, 16, 400, 8))
        generator = Generator(engine, text, Counts())
        app = application(Parts(replica, Admission(replica), generator, Exposition("m", replica, generator.counts), ("m",), "0"))
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
        async with openai.AsyncOpenAI(base_url="http://replica/v1", api_key="none", max_retries=0, http_client=http) as client:
            yield Judge(engine, text, client, read_vocabulary((folder / "tokenizer.json").read_text(), VOCAB), generator.counts)

    return made


async def test_reasoning_content_and_calls_are_distinguished_streamed_and_whole(model):
    async with model(QWEN) as judge:
        judge.says(f"<think>Hm 🦜.</think>I call.{CALL}")
        message = (await judge.whole(tools=[tool()])).choices[0].message
        assert (message.reasoning, message.reasoning_content, message.content) == ("Hm 🦜.", "Hm 🦜.", "I call.")
        assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [("f", '{"n": 1}')]
        found, reason, _ = await judge.streamed(tools=[tool()])
        assert found == {"reasoning": "Hm 🦜.", "content": "I call.", "calls": [["f", '{"n": 1}']]}
        assert reason == "tool_calls"


async def test_tokens_of_reasoning_are_counted_as_tokens(model):
    """🦜 is four tokens here, and the marks are none of the reasoning."""
    async with model(QWEN, ("<think>", "</think>")) as judge:
        total = judge.says("<think>Hm 🦜.</think>Yes.") + 1
        for usage in ((await judge.whole()).usage, (await judge.streamed())[2]):
            assert usage.completion_tokens == total
            assert usage.completion_tokens_details.reasoning_tokens == 8
        judge.says("Yes.")
        assert (await judge.whole()).usage.completion_tokens_details.reasoning_tokens == 0
        judge.says("<think>Hm")
        assert (await judge.whole(n=2)).usage.completion_tokens_details.reasoning_tokens == 4


async def test_marks_of_several_tokens_are_not_counted(model):
    async with model(OPENING) as judge:
        judge.says("Hm.</think>Yes.")
        assert (await judge.whole()).usage.completion_tokens_details.reasoning_tokens == 3


async def test_where_the_template_opens_the_thinking_block_an_answer_begins_in_it(model):
    async with model(OPENING) as judge:
        judge.says("Hm.</think>\n\nYes.")
        message = (await judge.whole()).choices[0].message
        assert (message.reasoning, message.content) == ("Hm.", "\n\nYes.")
        assert (await judge.streamed())[0] == {"reasoning": "Hm.", "content": "\n\nYes.", "calls": []}


async def test_an_answer_that_ends_in_reasoning_has_no_content(model):
    async with model(OPENING) as judge:
        judge.says("Hm, I")
        message = (await judge.whole()).choices[0].message
        assert (message.reasoning, message.content) == ("Hm, I", None)
        found, reason, _ = await judge.streamed()
        assert (found["reasoning"], found["content"], reason) == ("Hm, I", "", "stop")


@pytest.mark.parametrize("template", [QWEN, OPENING])
async def test_without_thinking_all_is_content(model, template):
    async with model(template) as judge:
        judge.says("<think>Yes.")
        message = (await judge.whole(extra_body={"chat_template_kwargs": {"enable_thinking": False}})).choices[0].message
        assert message.content == "<think>Yes."
        assert not hasattr(message, "reasoning")


async def test_a_parser_that_is_named_wins_over_the_template(model):
    async with model(OPENING, reasoning_parser="none") as judge:
        judge.says("Hm.</think>Yes.")
        assert (await judge.whole()).choices[0].message.content == "Hm.</think>Yes."


async def test_a_message_that_is_continued_may_end_within_a_thought(model):
    fields = {"extra_body": {"continue_final_message": True, "add_generation_prompt": False}}
    async with model("{% for m in messages %}{{ m.content }}{% endfor %}{# </think> #}") as judge:
        judge.says("m.</think>Yes.")
        for begun, content in (("<think>H", "Yes."), ("<think>H</think>Y", "m.</think>Yes."), ("Y", "m.</think>Yes.")):
            messages = [*HI, {"role": "assistant", "content": begun}]
            assert (await judge.whole(messages=messages, **fields)).choices[0].message.content == content, begun


async def test_stop_strings_logprobs_and_choices_stay_right(model):
    async with model(OPENING) as judge:
        total = judge.says("Hm.</think>Yes. No.")
        answer = await judge.whole(n=2, stop=["No"], logprobs=True)
        assert [(one.message.reasoning, one.message.content, one.finish_reason) for one in answer.choices] == [("Hm.", "Yes. ", "stop")] * 2
        tokens = "".join(entry.token for entry in answer.choices[1].logprobs.content)
        assert tokens == "Hm.</think>Yes. "
        scored = []
        async with await judge.whole(stream=True, logprobs=True) as stream:
            async for chunk in stream:
                scored += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
        assert len(scored) == total + 1


# How the marks are in the vocabulary: as their characters, as special tokens, or as tokens of text (as Qwen3 has them).
VOCABULARIES = pytest.mark.parametrize(("marks", "special"), [((), True), (MARKS, True), (MARKS, False)], ids=["none", "special", "text"])


@VOCABULARIES
async def test_a_format_binds_what_comes_after_the_reasoning(model, marks, special):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}}
    async with model(OPENING, marks, special) as judge:
        judge.says('Hm.</think>{"n": 1}')
        assert (await judge.whole(response_format=form)).choices[0].message.content == '{"n": 1}'
        follows = judge.bound()
        assert follows('I think {"x".</think>{"n": 1}')
        assert not follows('Hm.</think>{"n": "x"}')
        assert not follows('{"n": 1}')
        await judge.whole(response_format=form, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
        assert judge.bound()('Hm.</think>{"n": 1}')


@VOCABULARIES
async def test_where_the_model_may_think_a_format_binds_either_way(model, marks, special):
    async with model(QWEN, marks, special) as judge:
        judge.says("1")
        for body, good, bad in (
            ({"guided_choice": ["yes", "no"]}, "yes", "ye"),
            ({"guided_regex": "a/b+"}, "a/bb", "a"),
            ({"guided_grammar": 'start: "a" b\nb: "c"+'}, "acc", "a"),
            ({"guided_json": PARAMETERS}, '{"n": 1}', "{}"),
        ):
            await judge.whole(extra_body=body)
            follows = judge.bound()
            assert follows(good), body
            assert follows(f"<think>Hm.</think>{good}"), body
            assert not follows(f"<think>Hm.</think>{bad}"), body
            assert not follows(f"<think>{good}"), body
            await judge.whole(extra_body={**body, "chat_template_kwargs": {"enable_thinking": False}})
            assert judge.bound()(good), body
            assert not judge.bound()(f"<think>Hm.</think>{good}"), body
        with pytest.raises(openai.BadRequestError, match="Lark") as caught:
            await judge.whole(extra_body={"guided_grammar": 'root ::= "a"'})
        assert caught.value.param == "guided_grammar"


@VOCABULARIES
async def test_required_calls_follow_the_reasoning(model, marks, special):
    async with model(OPENING, marks, special) as judge:
        judge.says(f"Hm.</think>{CALL}")
        answer = await judge.whole(tools=[tool()], tool_choice="required")
        message = answer.choices[0].message
        assert (message.reasoning, message.content, len(message.tool_calls), answer.choices[0].finish_reason) == (
            "Hm.",
            None,
            1,
            "tool_calls",
        )
        assert judge.bound()(f"Hm.</think>{CALL}")
        assert not judge.bound()("Hm.</think>Yes.")


@VOCABULARIES
async def test_calls_of_strict_tools_follow_their_schemas_and_text_is_free(model, marks, special):
    async with model(OPENING, marks, special) as judge:
        judge.says("</think>Yes")
        loose = CALL.replace('"f"', '"g"').replace('"n"', '"m"')
        await judge.whole(tools=[tool(strict=True), tool("g")], parallel_tool_calls=False)
        for text in ("Yes.", CALL, f"I call.\n{CALL}", loose, "a <tool b", f"{CALL} done"):
            assert judge.bound()(f"Hm.</think>{text}"), text
        for text in (CALL.replace("1", '"x"'), CALL.replace('"f"', '"h"'), CALL + CALL, "<tool_call>"):
            assert not judge.bound()(f"Hm.</think>{text}"), text
        await judge.whole(tools=[tool(strict=True)])
        assert judge.bound()(f"Hm.</think>{CALL}\n{CALL}")
        await judge.whole(tools=[tool()])
        assert judge.bound() is None


async def test_allowed_tools_are_the_only_ones_that_can_be_called_and_the_model_reads_all(model):
    def allowed(mode, *names):
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    async with model(QWEN) as judge:
        judge.says(CALL)
        other = CALL.replace('"f"', '"g"')
        for mode in ("auto", "required"):
            await judge.whole(tools=[tool("g"), tool()], tool_choice=allowed(mode, "f"))
            assert "2 tools" in judge.text.decode(judge.engine.submitted[-1].prompt)
            assert judge.bound()(CALL)
            assert not judge.bound()(other)
            assert judge.bound()("Yes.") is (mode == "auto")
        for names, said in ((("h",), "'h'"), ((), "at least one")):
            with pytest.raises(openai.BadRequestError, match=said) as caught:
                await judge.whole(tools=[tool()], tool_choice=allowed("auto", *names))
            assert caught.value.param == "tool_choice.allowed_tools.tools"


async def test_a_form_without_json_is_read_by_the_schema_and_enforced(model):
    call = "<tool_call>\n<function=f>\n<parameter=n>\n{}\n</parameter>\n</function>\n</tool_call>"
    async with model(CODER) as judge:
        judge.says(call.format(1))
        message = (await judge.whole(tools=[tool()])).choices[0].message
        assert message.tool_calls[0].function.arguments == '{"n": 1}'
        await judge.whole(tools=[tool()], tool_choice={"type": "function", "function": {"name": "f"}})
        assert judge.bound()(call.format(1))
        assert not judge.bound()(call.format("x"))
        with pytest.raises(openai.BadRequestError) as caught:
            await judge.whole(
                tools=[tool("g"), {"type": "function", "function": {**tool()["function"], "parameters": {"anyOf": [{}]}}}],
                tool_choice="required",
            )
        assert caught.value.param == "tools[1].function.parameters"


@pytest.mark.parametrize("marks", [(), HARMONY_MARKS])
async def test_gpt_oss_has_reasoning_calls_and_content_in_channels(model, marks):
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    async with model(HARMONY, marks) as judge:
        judge.says(f"{thought}<|channel|>final<|message|>Yes.")
        answer = await judge.whole()
        assert (answer.choices[0].message.reasoning, answer.choices[0].message.content) == ("Hm.", "Yes.")
        assert answer.usage.completion_tokens_details.reasoning_tokens == 3
        judge.says(f'{thought}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"n": 1}}')
        found, reason, usage = await judge.streamed(tools=[tool()])
        assert (found, reason) == ({"reasoning": "Hm.", "content": "", "calls": [["f", '{"n": 1}']]}, "tool_calls")
        assert usage.completion_tokens_details.reasoning_tokens == 3
        call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}'
        await judge.whole(tools=[tool()], tool_choice="required")
        assert judge.bound()(f"{thought}{call}")
        assert judge.bound()(call)
        assert not judge.bound()(f"{thought}<|channel|>final<|message|>Yes.")
        await judge.whole(response_format={"type": "json_object"}, tools=[tool()])
        assert judge.bound()(f'{thought}<|channel|>final<|message|>{{"a": 1}}')
        assert judge.bound()(f"{thought}{call}")
        assert not judge.bound()(f"{thought}<|channel|>final<|message|>Yes.")
        await judge.whole(tools=[tool(strict=True)])
        assert judge.bound()(f"{thought}<|channel|>final<|message|>Yes.")
        assert not judge.bound()(call.replace("1", '"x"'))


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_that_are_not_json_are_an_error_in_the_metrics_and_in_the_record_too(model, stream):
    """Of a message: its client gets an error, and no answer. A chat's arguments are text, so there they are no fault."""
    schema = {"name": "f", "input_schema": PARAMETERS}
    message = {"model": "m", "messages": HI, "max_tokens": 99, "tools": [schema], "stream": stream}
    async with model(QWEN, MARKS) as judge:
        judge.says("So. " + CALL.replace("1}", "one}"))
        judge.engine.later = stream
        answer = await judge.client._client.post("http://replica/v1/messages", json=message)
        assert (answer.status_code, "not JSON" in answer.text) == (200 if stream else 500, True)
        assert judge.counts.finished == {"error": 1}
        (record,) = judge.counts.recent.get(judge.engine.submitted[-1].request_id)
        assert (record.reasons, record.completion_tokens > 0, record.ended is not None) == (["error"], True, True)
        await judge.whole(tools=[tool()])
        assert judge.counts.finished == {"error": 1, "stop": 1}
