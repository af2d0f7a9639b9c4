"""The offline verdict on the table that tests/controlplane/contracts holds against the API server."""

import pytest
from pagoda_contracts.crds.validation import is_ours, judge, judge_update
from support.kube.object_table import FULL, INVALID, VALID, Row


def test_the_table_is_as_large_as_promised_and_says_nothing_twice():
    assert len(INVALID) >= 120
    assert len(VALID) >= 40
    assert len({row.title for row in INVALID}) == len(INVALID)


@pytest.mark.parametrize("row", INVALID, ids=lambda row: row.title)
def test_an_invalid_object_is_refused_at_its_field_and_for_one_reason(row):
    problems = judge(row.body("offline"))
    assert [problem.where or problem.message.partition(":")[0] for problem in problems] == [row.field]


@pytest.mark.parametrize("row", VALID, ids=lambda row: row.title)
def test_a_valid_object_is_taken(row):
    assert judge(row.body("offline")) == ()


def test_an_unknown_field_is_answered_with_the_known_ones():
    (problem,) = judge(Row("InferenceService", (("spec.accelerators[0].gpu.model", "x"),)).body("a"))
    assert problem.message == "unknown field; accepted: count, product"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("spec.accelerators", {"cpu": {"cores": 1, "memory": "2Gi"}}, "must be a list: begin with `- cpu:`, got {'cpu':"),
        ("spec.accelerators", "cpu", "must be a list: begin with `- …`, got 'cpu'"),
        (
            "spec.model.uri",
            "acme/tiny",
            "must begin with pvc://, hf://, s3://, gs://, az://, oci:// or https:// and name the files, such as pvc://claim/path",
        ),
        (
            "spec.engine.kvCache.size",
            "2GB",
            "'2GB' is not a quantity: use a number with m, k, M, G, T, Ki, Mi, Gi or Ti, such as 250m or 4Gi",
        ),
        ("spec.engine.toolParser", "llama3-json", "must be 'hermes', 'llama3_json', 'mistral',"),
        ("spec.slo.ttft", "1 s", "'1 s' is not a duration: use numbers with ms, s, m or h, such as 800ms, 30s or 1h30m"),
    ],
)
def test_a_value_that_people_get_wrong_is_answered_with_what_is_accepted(path, value, says):
    (problem,) = judge(Row("InferenceService", ((path, value),)).body("a"))
    assert (problem.where, problem.message[: len(says)]) == (path, says)


@pytest.mark.parametrize(
    ("field", "value", "near"),
    [("toolParser", "llama3-json", "llama3_json"), ("toolParser", "hermess", "hermes"), ("dtype", "float16", "bfloat16"), ("dtype", 7, "")],
)
def test_a_name_that_is_nearly_an_accepted_one_is_answered_with_it(field, value, near):
    (problem,) = judge(Row("InferenceService", ((f"spec.engine.{field}", value),)).body("a"))
    assert problem.message.partition("; ")[2] == (f"did you mean {near}?" if near else "")


@pytest.mark.parametrize(
    ("field", "value"), [("apiVersion", "serving.pagoda.dev/v1"), ("kind", "Model"), ("metadata", None), ("metadata", {"name": 7})]
)
def test_what_is_no_object_of_ours_is_named(field, value):
    (problem,) = judge(Row("InferenceService", ((field, value),)).body("a"))
    assert problem.where.startswith(field)


def test_an_empty_list_is_refused_although_another_field_is_refused_too():
    """Of a list whose entry was refused nothing more is said; a fault elsewhere hides nothing."""
    row = Row("InferenceService", (("spec.accelerators", []), ("spec.model.uri", "ftp://host/x")))
    assert {problem.where for problem in judge(row.body("a"))} == {"spec.accelerators", "spec.model.uri"}


@pytest.mark.parametrize(
    ("version", "ours"),
    [
        ("serving.pagoda.dev/v1alpha1", True),
        ("serving.pagoda.dev/v9", True),
        ("serving.pagoda.dev.example.com/v1", False),
        ("serving.pagoda.devel/v1", False),
        ("v1", False),
    ],
)
def test_an_object_is_ours_by_its_whole_group(version, ours):
    assert is_ours({"apiVersion": version, "kind": "InferenceService"}) is ours


def test_a_generated_name_is_judged_with_its_suffix():
    row = Row("InferenceService", (("metadata", {"generateName": "n" * 31}),))
    assert "at most 35" in judge(row.body("a"))[0].message
    assert judge(Row("InferenceService", (("metadata", {"generateName": "llama-"}),)).body("a")) == ()


@pytest.mark.parametrize(
    ("path", "value", "field"), [("spec.serviceRef.name", "other", "spec.serviceRef"), ("spec.modelName", "other", "spec.modelName")]
)
def test_immutable_fields_are_refused_in_an_update(path, value, field):
    old, new = Row("LoraAdapter", ()).body("a"), Row("LoraAdapter", ((path, value),)).body("a")
    (problem,) = judge_update(new, old)
    assert (problem.where, "immutable" in problem.message) == (field, True)
    assert judge_update(Row("LoraAdapter", (("spec.pinned", False),)).body("a"), old) == ()


def test_every_kind_has_a_complete_object():
    """A field that the table does not set is a field that no test refuses."""
    from pagoda_contracts.crds.crdgen import KINDS

    for kind in KINDS:
        assert set(FULL[kind.kind]) == {field.alias for field in kind.model.model_fields["spec"].annotation.model_fields.values()}
