"""The OpenAPI document says what the code does: routes, names, ranges; and docs/api.md says what the document does."""

import json
from pathlib import Path

import pytest
from pagoda_contracts.absent_routes import NOT_BUILT
from pagoda_daemon.api.http.app import Parts, application
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest, parse
from pagoda_daemon.api.openai.sampling import RANGES
from pagoda_daemon.api.responses.conversion import read
from pagoda_daemon.api.responses.requests import ResponsesRequest
from pagoda_daemon.api.routes import apidoc
from pagoda_daemon.api.routes.admission import Admission
from pagoda_daemon.api.routes.generation import Generator
from pagoda_daemon.api.routes.openapi import OPERATIONS, document
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.sampling import NUMBERS
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Counts, Exposition
from pagoda_daemon.text.tokens import ModelText
from starlette.routing import Route
from support.engine.toy_model import tiny_model_dir

ROOT = Path(__file__).parents[5]
DOCUMENT = document("1.2.3")
MINIMAL = {
    ChatRequest: {"messages": [{"role": "user", "content": "x"}]},
    CompletionRequest: {"prompt": "x"},
    ResponsesRequest: {"input": "x", "include": ["message.output_text.logprobs"]},
}
# Where one field needs another.
WITH = {"top_logprobs": {"logprobs": True}, "min_tokens": {"max_tokens": 2**31 - 1}, "max_tokens": {"echo": True}}


def routes(tmp_path):
    replica = Replica(born=0.0)
    generator = Generator(None, ModelText(tiny_model_dir(tmp_path)), Counts())
    app = application(Parts(replica, Admission(replica), generator, Exposition("m", replica, generator.counts), ("m",), "0"))
    while not hasattr(app, "routes"):
        app = app._app
    return [route for route in app.routes if isinstance(route, Route)]


def test_every_route_is_in_the_document_and_every_path_is_a_route(tmp_path):
    served = {
        (route.path.replace(":path", ""), method.lower()) for route in routes(tmp_path) for method in (route.methods or set()) - {"HEAD"}
    }
    described = {(path, method): one for path, methods in DOCUMENT["paths"].items() for method, one in methods.items()}
    assert served == {route for route, one in described.items() if "200" in one["responses"]}
    absent = {path for (path, _), one in described.items() if "501" in one["responses"]}
    assert absent == {path for path in NOT_BUILT if "{" not in path}
    assert len({one.name for one in OPERATIONS}) == len(OPERATIONS)


def references(node):
    if isinstance(node, dict):
        yield from [node["$ref"]] if "$ref" in node else ()
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_reference_leads_somewhere():
    found = set(references(DOCUMENT))
    assert found == {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT


def refused(kind, name, value):
    """Which field the refusal names; None where there is none."""
    needed = {} if kind is ResponsesRequest else WITH.get(name, {})
    fields = {"model": "m", **MINIMAL[kind], **needed, name: value}
    if name == "max_tokens" and kind is ChatRequest:
        del fields["echo"]
    body = json.dumps(fields).encode()
    try:
        read(body, []) if kind is ResponsesRequest else parse(body, kind, [])
    except BadRequest as error:
        return error.param
    return None


@pytest.mark.parametrize("kind", MINIMAL)
def test_ranges_in_the_document_are_those_that_are_enforced(kind):
    properties = DOCUMENT["components"]["schemas"][kind.__name__]["properties"]
    seen = set()
    for name, schema in properties.items():
        for bounds in (one for one in (schema, *schema.get("anyOf", ())) if "maximum" in one):
            seen.add(name)
            exclusive = "exclusiveMinimum" in bounds
            least, most = bounds["exclusiveMinimum" if exclusive else "minimum"], bounds["maximum"]
            exclusive |= name == "max_tokens" and kind is ChatRequest  # said where it is checked: not 0
            assert refused(kind, name, least) == (name if exclusive else None)
            assert refused(kind, name, most) is None, name
            assert refused(kind, name, least - 1) == name
            assert refused(kind, name, most + 1 if most + 1 != most else most * 2) == name
    assert seen == (RANGES.keys() | NUMBERS.keys()) & set(kind.__struct_fields__)
    assert seen > set(NUMBERS)
    assert len(seen) >= 12


def test_only_answers_say_null():
    """In a request null is the same as absent. An answer has the field, and a client's own types must take its null."""
    schemas, read = DOCUMENT["components"]["schemas"], apidoc.in_requests(DOCUMENT)

    def said(name, field):
        return apidoc.described(field, schemas[name], schemas[name]["properties"][field], name in read)[0]

    assert said("ChunkChoice", "finish_reason") == "string or null"
    assert said("ChatChoice", "token_ids") == "array of integer", "absent, and never null"
    assert said("ChatRequest", "seed") == "integer"
    assert "StreamOptions" in read, "types inside of a request's are read too"
    assert not {"ChatReply", "Usage", "ErrorReply"} & read


def test_the_tables_of_the_docs_are_up_to_date_and_a_change_is_noticed(tmp_path, capsys):
    path = ROOT / "docs" / "api.md"
    assert apidoc.main(["--check", str(path)]) == 0
    stale = tmp_path / "api.md"
    stale.write_text(path.read_text().replace("| `temperature` |", "| `temprature` |"))
    assert apidoc.main(["--check", str(stale)]) == 1
    assert "out of date" in capsys.readouterr().err
    assert apidoc.main([str(stale)]) == 0
    assert stale.read_text() == path.read_text()
