"""Schemas for kubeconform out of an API server's OpenAPI document."""

from typing import Any

from pagoda_devcluster.client import schemas

GVK = schemas.KINDS
DOCUMENT: dict[str, Any] = {
    "components": {
        "schemas": {
            "v1.Pod": {
                "type": "object",
                "properties": {"spec": {"allOf": [{"$ref": "#/components/schemas/v1.Spec"}], "default": {}}},
                GVK: [{"group": "", "version": "v1", "kind": "Pod"}],
            },
            "v1.Spec": {"type": "object", "properties": {"labels": {"type": "object", "additionalProperties": {"type": "string"}}}},
            "v1.Other": {"type": "object", "properties": {"free": {"type": "object", "properties": {}, schemas.KEEP: True}}},
            "d.Kind": {"type": "object", "properties": {}, GVK: [{"group": "d.dev", "version": "v1alpha1", "kind": "Kind"}]},
        }
    }
}


def test_every_kind_has_a_file_under_the_name_kubeconform_looks_for():
    assert sorted(schemas.schemas_of(DOCUMENT)) == ["d.dev_v1alpha1_kind.json", "v1_v1_pod.json"]


def test_a_file_holds_what_its_kind_reaches_and_nothing_else():
    pod = schemas.schemas_of(DOCUMENT)["v1_v1_pod.json"]
    assert pod["$ref"] == "#/components/schemas/v1.Pod"
    assert sorted(pod["components"]["schemas"]) == ["v1.Pod", "v1.Spec"]


def test_unknown_fields_are_refused_but_not_in_maps_and_not_where_they_are_kept():
    made = schemas.closed(DOCUMENT["components"]["schemas"])
    assert made["v1.Spec"]["additionalProperties"] is False
    assert made["v1.Spec"]["properties"]["labels"]["additionalProperties"] == {"type": "string"}
    assert "additionalProperties" not in made["v1.Other"]["properties"]["free"]
