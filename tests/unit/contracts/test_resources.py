"""InferenceService and ServingProfile: defaults, refusals, and the schema that the API server gets."""

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pagoda_contracts.crds.crdgen import KINDS, crd, files
from pagoda_contracts.crds.schema import SchemaError, structural
from pagoda_contracts.resources.meta import Model, Transition
from pagoda_contracts.resources.profile import ServingProfile, ServingProfileSpec
from pagoda_contracts.resources.service import InferenceService
from pydantic import Field, ValidationError

DATA = Path(__file__).parents[2] / "data/v0.1"
GOOD = {
    "apiVersion": "serving.pagoda.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "llama-tiny", "namespace": "default"},
    "spec": {"model": {"uri": "pvc://llama-tiny/v1"}, "accelerators": [{"cpu": {"cores": 2, "memory": "2Gi"}}]},
}


def edited(path: str, value: object) -> dict:
    out = copy.deepcopy(GOOD)
    at = out
    *parents, last = path.split(".")
    for part in parents:
        at = at[int(part)] if part.isdigit() else at.setdefault(part, {})
    at[last] = value
    return out


def test_defaults_are_filled_in():
    service = InferenceService.model_validate(GOOD)
    assert service.spec.replicas == 1
    assert service.spec.drain.timeout == "30s"
    assert service.spec.profile_ref.name == "default"
    assert service.served_names == ("llama-tiny",)
    assert service.spec.accelerators[0].cpu.cores == "2"


def test_models_are_frozen():
    service = InferenceService.model_validate(GOOD)
    with pytest.raises(ValidationError, match="frozen"):
        service.spec = None


BAD = [
    ("spec.replicas", -1, "spec.replicas"),
    ("spec.replicas", 1025, "spec.replicas"),
    ("spec.model.uri", "ftp://host/x", "spec.model.uri"),
    ("spec.model.uri", "pvc://claim/../etc", "spec.model.uri"),
    ("spec.model.uri", "pvc://ServedName", "spec.model.uri"),
    ("spec.accelerators", [], "spec.accelerators"),
    ("spec.accelerators", [{}], "exactly one kind"),
    ("spec.accelerators.0.cpu.cores", "two", "such as 250m"),
    ("spec.accelerators.0.cpu.memory", "2GB", "such as 250m"),
    ("spec.engine.maxModelLen", 4, "spec.engine.maxModelLen"),
    ("spec.engine.dtype", "float16", "spec.engine.dtype"),
    ("spec.engine.kvCache.blockSize", 17, "spec.engine.kvCache.blockSize"),
    ("spec.drain.timeout", "10", "such as 800ms"),
    ("spec.drain.timeout", "61m", "at most 1h"),
    ("spec.profileRef.name", "No_Dns", "spec.profileRef.name"),
    ("spec.unknown", 1, "spec.unknown"),
    ("metadata.name", "n" * 36, "at most 35"),
    ("apiVersion", "serving.kserve.io/v1", "must be"),
]


@pytest.mark.parametrize(("path", "value", "expected"), BAD, ids=[f"{path}={value!r}"[:60] for path, value, _ in BAD])
def test_refusals_name_the_field_or_what_is_accepted(path, value, expected):
    with pytest.raises(ValidationError) as refusal:
        InferenceService.model_validate(edited(path, value))
    messages = [".".join(map(str, error["loc"])) + ": " + error["msg"] for error in refusal.value.errors()]
    assert any(expected in line for line in messages), messages


def test_a_reader_of_live_objects_ignores_what_a_newer_version_added():
    service = InferenceService.model_validate(edited("spec.fromTheFuture", 1), extra="ignore")
    assert service.spec.replicas == 1


@pytest.mark.parametrize(("levels", "taken"), [(63, True), (64, False), (9_000, False)])
def test_a_pod_template_is_not_nested_deeper_than_any_pod(levels, taken):
    template = 1
    for _ in range(levels):
        template = [template]
    spec = {"images": {"daemon": "a/b:c"}, "podTemplate": {"spec": template}}
    if taken:
        assert ServingProfileSpec.model_validate(spec).pod_template == spec["podTemplate"]
    else:
        with pytest.raises(ValidationError, match="nested deeper than 64 levels"):
            ServingProfileSpec.model_validate(spec)


def test_profile_pod_template_is_schemaless():
    profile = ServingProfile.model_validate(
        {"metadata": {"name": "default"}, "spec": {"images": {"daemon": "a/b:c"}, "podTemplate": {"spec": {"tolerations": [{"key": "x"}]}}}}
    )
    assert profile.spec.pod_template == {"spec": {"tolerations": [{"key": "x"}]}}


written = cache(files)
SCHEMAS = {kind.plural: cache(lambda kind=kind: schema_of(crd(kind))) for kind in KINDS}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_object_of_the_version_before_is_still_valid(name):
    """Its snapshot is the N-1 of the skew tests: what was added since is welcome, what was taken away or narrowed is not."""
    before, now = schema_of(json.loads((DATA / f"{name}.json").read_text())), SCHEMAS[name]()
    assert list(narrowed(before, now, "")) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda spec: spec["properties"].pop("drain"), ".spec.drain: gone"),
        (lambda spec: spec.update(required=["model", "accelerators", "slo"]), ".spec: newly required: slo"),
        (lambda spec: spec["properties"]["replicas"].update(maximum=8), ".spec.replicas: maximum 1024 -> 8"),
        (lambda spec: spec["properties"]["replicas"].update(default=2), ".spec.replicas: default 1 -> 2"),
        (
            lambda spec: spec["properties"]["engine"]["properties"]["dtype"]["enum"].remove("float32"),
            ".spec.engine.dtype: no longer float32",
        ),
        (lambda spec: spec["properties"]["model"]["properties"]["uri"].update(pattern="^x$"), ".spec.model.uri: pattern"),
    ],
)
def test_a_narrowed_schema_is_found(change, found):
    before = SCHEMAS["inferenceservices"]()
    now = copy.deepcopy(before)
    change(now["properties"]["spec"])
    (complaint,) = narrowed(before, now, "")
    assert complaint.startswith(found)


def schema_of(crd):
    (version,) = crd["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


EXACT = (
    "type",
    "pattern",
    "default",
    "format",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-int-or-string",
)
WIDENS = {
    "maximum": 1,
    "maxLength": 1,
    "maxItems": 1,
    "maxProperties": 1,
    "minimum": -1,
    "minLength": -1,
    "minItems": -1,
    "minProperties": -1,
}


def for_numbers(schema):
    """Of a schema for a number or a map: its other bounds hold for what is not a number."""
    return {"type": "integer"} | {word: schema[word] for word in ("minimum", "maximum")}


def narrowed(before, now, path):
    """Where an object of before, or a reader of before, may fail now."""
    now = for_numbers(now) if before.get("type") == "integer" and "type" not in now else now
    yield from (f"{path}: {word} {before.get(word)} -> {now.get(word)}" for word in EXACT if before.get(word) != now.get(word))
    for word, sign in WIDENS.items():
        if word in now and (word not in before or (now[word] - before[word]) * sign < 0):
            yield f"{path}: {word} {before.get(word)} -> {now[word]}"
    if added := set(now.get("required", ())) - set(before.get("required", ())):
        yield f"{path}: newly required: {', '.join(sorted(added))}"
    for value in before.get("enum", ()) if "enum" in now else ():
        if value not in now["enum"]:
            yield f"{path}: no longer {value}"
    for name, schema in before.get("properties", {}).items():
        if name not in now.get("properties", {}):
            yield f"{path}.{name}: gone"
        else:
            yield from narrowed(schema, now["properties"][name], f"{path}.{name}")
    for below in ("items", "additionalProperties"):
        if isinstance(before.get(below), dict):
            yield from narrowed(before[below], now.get(below, {}), f"{path}[]")


def test_crds_stay_small_enough_for_client_side_apply():
    assert sum(len(text) for path, text in written().items() if path.startswith("crds/")) < 200_000


def test_every_rule_of_a_model_reaches_the_schema():
    schema = structural(InferenceService)
    spec = schema["properties"]["spec"]["properties"]
    assert schema["x-kubernetes-validations"][0]["rule"].startswith("size(self.metadata.name)")
    assert spec["drain"]["x-kubernetes-validations"][0]["message"] == "drain.timeout must be at most 1h"
    assert "exactly one kind" in spec["accelerators"]["items"]["x-kubernetes-validations"][0]["message"]
    assert spec["replicas"]["default"] == 1


def patterns(schema, path=""):
    """Where a schema has a pattern and a rule beside it."""
    if "pattern" in schema and (rules := schema.get("x-kubernetes-validations")):
        yield path, schema["pattern"], rules[0]
    for name, below in schema.get("properties", {}).items():
        yield from patterns(below, f"{path}.{name}")
    if "items" in schema:
        yield from patterns(schema["items"], f"{path}[]")


def test_an_address_a_duration_and_a_quantity_are_refused_in_words():
    """The API server's own refusal of a pattern is the pattern."""
    found = {path: (pattern, rule) for path, pattern, rule in patterns(structural(InferenceService))}
    for path in (".spec.model.uri", ".spec.drain.timeout", ".spec.accelerators[].fallbackAfter", ".spec.scaling.predictive.horizon"):
        pattern, rule = found[path]
        assert rule["rule"] == f"self.matches(r'{pattern}')"
        assert rule["message"].startswith("must be")
    assert "2Gi, not 2GB" in found[".spec.accelerators[].cpu.memory"][1]["message"]


def test_the_chart_ships_every_kind_and_every_schema_says_no_null():
    made = written()
    assert sorted(Path(path).stem for path in made if path.startswith("crds/")) == [
        "inferenceservices", "loraadapters", "servingprofiles", "tenantquotas",
    ]  # fmt: skip
    assert all("null" not in text for text in made.values())


# Of the serving projects whose kinds may be on the same cluster.
TAKEN = {"isvc", "llmisvc", "is", "isets", "infpool", "va", "mc", "dm"}


def test_no_short_name_is_one_of_another_project():
    assert TAKEN.isdisjoint(name for kind in KINDS for name in kind.short_names)


def test_every_command_in_a_document_names_the_kind_with_its_group():
    """KServe has a kind of the same name."""
    root = Path(__file__).parents[3]
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md"), *(root / "charts/pagoda").rglob("*")]
    lines = [line for page in pages if page.suffix in (".md", ".txt", ".yaml") for line in page.read_text().splitlines()]
    assert [line for line in lines if re.search(r"kubectl.*\binferenceservices?\b(?!\.serving)", line)] == []


class Bound(Model):
    """It has a transition and no rule."""

    transitions = (Transition("self.number == oldSelf.number", "number is immutable", lambda new, old: new.number == old.number, "number"),)
    number: int = Field(default=0, description="stays as it is")


class Bounded(Model):
    spec: Bound = Field(description="the only part")


def test_a_transition_reaches_the_schema_without_a_rule_beside_it():
    validation = {"rule": "self.number == oldSelf.number", "message": "number is immutable", "fieldPath": ".number"}
    assert structural(Bounded)["properties"]["spec"]["x-kubernetes-validations"] == [validation]


class Unbounded(Model):
    text: str = Field(description="no bound")


class Union(Model):
    both: int | bool = Field(description="two types")


class Silent(Model):
    number: int = 0


class Strict(Model):
    share: float = Field(gt=0, description="an exclusive bound")


class Fraction(Model):
    share: float = Field(ge=0.01, description="a bound that the API server cuts")


class Map(Model):
    pairs: dict[str, bool] = Field(description="no bound")


class Anything(Model):
    free: dict[str, Any] = Field(description="schemaless without saying so")


REFUSED = [
    (Unbounded, "maxLength"), (Union, "union"), (Silent, "no description"), (Strict, "exclusiveMinimum"), (Map, "maxProperties"),
    (Fraction, "fraction"),
    (Anything, "schemaless"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "reason"), REFUSED)
def test_what_a_structural_schema_cannot_say_is_refused(model, reason):
    with pytest.raises(SchemaError, match=reason):
        structural(type("Kind", (Model,), {"__annotations__": {"spec": model}, "spec": Field(description="x"), "__module__": __name__}))


def test_a_rule_stays_with_its_model_and_never_goes_by_a_field_s_name():
    """A field called `accelerator` once got the rule of the model Accelerator; the API server refused the CRD."""
    rejected = structural(InferenceService)["properties"]["status"]["properties"]["placement"]["properties"]["rejected"]
    assert "x-kubernetes-validations" not in rejected["items"]["properties"]["accelerator"]
