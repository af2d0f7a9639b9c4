"""The API server and `pagoda validate` judge the same table the same way."""

import json

import pytest
from pagoda_cli.documents import documents
from pagoda_cli.validate import findings
from pagoda_contracts.crds.crdgen import KINDS
from pagoda_contracts.crds.validation import judge, judge_update
from support.kube.object_table import ADAPTER, FULL, INVALID, VALID, Row

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("row", INVALID, ids=lambda row: row.title)
def test_an_invalid_object_is_refused_by_both_at_the_same_field(server, row):
    body = row.body("table")
    answer = server.create(body)
    assert answer.status_code in (400, 422), answer.text
    message = answer.json()["message"]
    assert row.field in message
    assert row.says in message
    assert [problem.where or problem.message.partition(":")[0] for problem in judge(body)] == [row.field]


@pytest.mark.parametrize("row", VALID, ids=lambda row: row.title)
def test_a_valid_object_comes_back_unchanged_apart_from_defaults(server, row):
    body = row.body("table")
    answer = server.create(body)
    assert answer.status_code == 201, answer.text
    assert list(lost(absent_nulls(body["spec"]), answer.json()["spec"])) == []
    assert judge(body) == ()


def absent_nulls(value):
    """null in a map means absent, everywhere but in the schemaless overlay."""
    return (
        {key: item if key == "podTemplate" else absent_nulls(item) for key, item in value.items() if item is not None}
        if isinstance(value, dict)
        else value
    )


def lost(sent, stored, path=""):
    """What does not stand in the stored object as it was sent."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            yield from lost(value, stored.get(key), f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        for index, (one, other) in enumerate(zip(sent, stored, strict=True)):
            yield from lost(one, other, f"{path}[{index}]")
    elif sent != stored:
        yield f"{path}: {sent!r} became {stored!r}"


def test_what_was_read_back_is_still_valid_and_its_models_read_the_same(server):
    """A stored object, defaults and all, passes the models and says the same as what was sent."""
    for kind in KINDS:
        body = Row(kind.kind, ()).body("table")
        stored = server.create(body).json()
        assert kind.model.model_validate(stored).spec == kind.model.model_validate(body).spec


def test_defaults_of_the_server_are_the_models_own(server):
    for kind in KINDS:
        for row in [row for row in VALID if row.kind == kind.kind]:
            body = absent_nulls(row.body("table"))
            stored = server.create(body).json()
            model = kind.model.model_validate(body)
            assert kind.model.model_validate(stored).spec == model.spec, row.title


def test_a_file_s_findings_are_the_server_s_with_lines(server):
    """`pagoda validate` reads YAML: each refusal carries the line on which the field stands."""
    for row in INVALID[::7]:
        text = json.dumps(row.body("table"), indent=1)
        (document,) = documents("table", text)
        (found,) = findings("table", document)
        assert found.path in server.create(row.body("table")).json()["message"]
        key = found.path.rpartition(".")[2].partition("[")[0]
        parent_or_key = found.line == 1 or text.splitlines()[found.line - 1].strip()
        assert parent_or_key
        if f'"{key}":' in text and document.lines.get(steps(found.path)):
            assert f'"{key}"' in text.splitlines()[found.line - 1] or "[" in found.path.rpartition(".")[2]


def steps(path):
    out = []
    for part in path.split("."):
        key, *indexes = part.replace("]", "").split("[")
        out += [key, *map(int, indexes)]
    return tuple(out)


@pytest.mark.parametrize(("path", "value"), [("spec.serviceRef.name", "other"), ("spec.modelName", "other"), ("spec.modelName", None)])
def test_immutable_fields_stay(server, path, value):
    old, new = Row(ADAPTER, ()).body("fixed"), Row(ADAPTER, ((path, value),)).body("fixed")
    assert server.create(old, dry=False).status_code == 201
    try:
        answer = server.update(new)
        assert answer.status_code == 422, answer.text
        (problem,) = judge_update(new, old)
        assert problem.where in answer.json()["message"]
        assert problem.message in answer.json()["message"]
        assert server.update(Row(ADAPTER, (("spec.pinned", False),)).body("fixed")).status_code == 200
    finally:
        server.delete(ADAPTER, "fixed")


def test_the_table_sets_every_field_of_every_kind():
    for kind in KINDS:
        assert set(FULL[kind.kind]) == {field.alias for field in kind.model.model_fields["spec"].annotation.model_fields.values()}
