"""The grammar that makes an answer nothing but calls."""

import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from
from pagoda_daemon.api.openai.tool_formats import FORMATS, answer_grammar
from pagoda_daemon.api.openai.tools import Function, Tool, Toolbox

BYTES = LLTokenizer("byte")
ANY = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "x-guidance": {"whitespace_pattern": " *"}}


def allowed(form, blanks):
    box = Toolbox((Tool(type="function", function=Function(name="f", parameters=ANY)),), must=True, named=True)
    matcher = LLMatcher(BYTES, grammar_from("grammar", answer_grammar(box, FORMATS[form], (None, None)).text))
    head = {"hermes": "<tool_call>\n", "llama3_json": "", "mistral": "[TOOL_CALLS]["}[form]
    text = f'{head}{{"name": "f", "{FORMATS[form].arguments}": {{"a":{" " * blanks}1'
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens)


@pytest.mark.parametrize("form", FORMATS)
def test_blanks_in_arguments_are_bounded_whatever_the_schema_says(form):
    assert allowed(form, 1)
    assert not allowed(form, 2)
