"""What people do with the kinds by kubectl: explain, get, scale, two managers of one object, unknown fields."""

import json
import re

import pytest
import yaml
from pagoda_contracts.crds.crdgen import KINDS
from pagoda_contracts.names import API_VERSION
from pagoda_contracts.resources.service import INFERENCE_SERVICE
from pagoda_contracts.resources.tenant import Usage, WindowLimit, WindowUsage
from pagoda_operator.quota.usage import summary
from support.kube.object_table import Row

pytestmark = pytest.mark.cluster
NAMESPACE = "contracts"
LLAMA = f"{INFERENCE_SERVICE.resource}/llama"


@pytest.fixture
def kubectl(cluster):
    def call(*args, **options):
        return cluster.kubectl("-n", NAMESPACE, *args, **options)

    yield call
    for kind in KINDS:
        call("delete", kind.resource, "--all", "--wait=true")


def create(kubectl, kind="InferenceService", name="llama", *edits):
    kubectl("create", "-f", "-", input=json.dumps(Row(kind, edits).body(name)))


def test_explain_describes_every_field(kubectl):
    for kind in KINDS:
        text = kubectl("explain", f"{kind.resource}.spec", "--recursive")
        for field in kind.model.model_fields["spec"].annotation.model_fields.values():
            assert re.search(rf"^  {field.alias}\t", text, re.MULTILINE), f"{kind.kind}.{field.alias}"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("inferenceservices.serving.pagoda.dev.spec.replicas", "How many replicas serve."),
        ("inferenceservices.serving.pagoda.dev.spec.accelerators.mig.profile", "The MIG profile, such as 3g.40gb."),
        ("inferenceservices.serving.pagoda.dev.spec.scaling.mode", "Auto: the operator;"),
        ("loraadapters.spec.source.digest", "sha256:"),
        ("tenantquotas.spec.limits.tokens", "reserved at admission"),
        ("servingprofiles.spec.sharedMemory", "Size of"),
    ],
)
def test_explain_says_what_a_field_is(kubectl, path, says):
    assert says in " ".join(kubectl("explain", path).split())


def test_the_category_lists_all_kinds_and_no_short_name_is_taken(kubectl):
    for kind in KINDS:
        create(kubectl, kind.kind, "one")
    listed = kubectl("get", "pagoda", "-o", "name").split()
    assert sorted(name.partition(".")[0] for name in listed) == sorted(kind.kind.lower() for kind in KINDS)
    table = kubectl("api-resources", "--categories=pagoda", "--no-headers").splitlines()
    # NAME, SHORTNAMES if there are any, APIVERSION, NAMESPACED, KIND
    assert [len(line.split()) for line in table] == [4 + bool(kind.short_names) for kind in sorted(KINDS, key=lambda kind: kind.plural)]


@pytest.mark.parametrize(
    ("plural", "columns"),
    [
        ("inferenceservices", "NAME READY REASON REPLICAS DESIRED ACCELERATOR AGE"),
        ("loraadapters", "NAME SERVICE PLACEMENT READY LOADED REASON AGE"),
        ("tenantquotas", "NAME PRIORITY WEIGHT CONCURRENCY USED GPUS READY AGE"),
        ("servingprofiles", "NAME DAEMON SERVICES READY AGE"),
    ],
)
def test_get_shows_what_people_look_for(kubectl, plural, columns):
    (kind,) = [one for one in KINDS if one.plural == plural]
    create(kubectl, kind.kind, "one")
    assert kubectl("get", kind.resource).splitlines()[0].split() == columns.split()


def test_get_shows_what_is_used_of_a_quota_and_its_status_what_is_left(kubectl):
    """As the operator writes it."""
    windows = [WindowUsage(window="1m", requests=12, requests_left=588, tokens=3100, tokens_left=96900)]
    limits = [WindowLimit(window="1m", requests=600, tokens=100000)]
    usage = Usage(summary=summary(windows, limits), windows=tuple(windows)).model_dump(mode="json", by_alias=True, exclude_none=True)
    create(kubectl, "TenantQuota", "team")
    kubectl("patch", "tenantquota/team", "--subresource=status", "--type=merge", "-p", json.dumps({"status": {"usage": usage}}))
    header, row = kubectl("get", "tenantquota", "team").splitlines()
    at = header.index("USED")
    assert row[at : header.index("GPUS")].strip() == "12/600 requests, 3100/100000 tokens in 1m"
    (stored,) = json.loads(kubectl("get", "tenantquota", "team", "-o", "json"))["status"]["usage"]["windows"]
    assert (stored["requestsLeft"], stored["tokensLeft"]) == (588, 96900)


def test_scale_reads_and_writes_replicas_with_and_without_a_value(kubectl):
    create(kubectl, "InferenceService", "llama", ("spec.replicas", None))
    kubectl("scale", LLAMA, "--current-replicas=1", "--replicas=3")
    kubectl("patch", LLAMA, "--subresource=status", "--type=merge", "-p", json.dumps(STATUS))
    found = json.loads(kubectl("get", LLAMA, "--subresource=scale", "-o", "json"))
    assert (found["spec"]["replicas"], found["status"]) == (3, {"replicas": 2, "selector": "a=b"})


STATUS = {"status": {"observedGeneration": 2, "replicas": 2, "selector": "a=b"}}


def test_an_edit_of_the_spec_cannot_write_the_status_nor_the_other_way(kubectl):
    create(kubectl)
    kubectl("patch", LLAMA, "--type=merge", "-p", json.dumps(STATUS | {"spec": {"replicas": 5}}))
    kubectl("patch", LLAMA, "--subresource=status", "--type=merge", "-p", json.dumps({"spec": {"replicas": 9}}))
    found = json.loads(kubectl("get", LLAMA, "-o", "json"))
    assert (found["spec"]["replicas"], "status" in found) == (5, False)


def test_two_managers_share_an_object_on_disjoint_fields(kubectl):
    base = Row("InferenceService", ()).body("llama")
    one = base | {"spec": {name: base["spec"][name] for name in ("model", "accelerators", "credentials")}}
    meta = {key: base[key] for key in ("apiVersion", "kind", "metadata")}
    extra = {"name": "other", "secretRef": {"name": "other"}}
    two = meta | {"spec": {"replicas": 4, "credentials": [extra], "scaling": {"mode": "External"}}}
    apply(kubectl, one, "app")
    apply(kubectl, two, "platform")
    apply(kubectl, one, "app")
    found = json.loads(kubectl("get", LLAMA, "-o", "json"))["spec"]
    assert (found["replicas"], found["scaling"]["mode"], len(found["credentials"])) == (4, "External", 2)
    with pytest.raises(RuntimeError, match='conflict with "platform"'):
        apply(kubectl, one | {"spec": one["spec"] | {"replicas": 1}}, "app")


def apply(kubectl, body, manager):
    kubectl("apply", "--server-side", f"--field-manager={manager}", "-f", "-", input=yaml.safe_dump(body))


def test_unknown_fields_are_refused_by_default_and_pruned_where_asked(kubectl):
    body = Row("InferenceService", (("spec.fromTheFuture", 1), ("spec.podTemplate.spec.kept", True))).body("llama")
    for options in ((), ("--validate=strict",)):
        with pytest.raises(RuntimeError, match=r'unknown field "spec.fromTheFuture"'):
            kubectl("apply", *options, "-f", "-", input=json.dumps(body))
    kubectl("apply", "--validate=ignore", "-f", "-", input=json.dumps(body))
    spec = json.loads(kubectl("get", LLAMA, "-o", "json"))["spec"]
    assert ("fromTheFuture" in spec, spec["podTemplate"]["spec"]) == (False, {"kept": True})


def test_every_kind_is_established_and_its_schema_is_structural(cluster):
    for kind in KINDS:
        found = cluster.get("crd", f"{kind.plural}.{API_VERSION.partition('/')[0]}")
        states = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
        assert (states["Established"], states["NamesAccepted"]) == ("True", "True")
        assert states.get("NonStructuralSchema", "False") == "False"
