"""Merging templates, judging paths, comparing with live objects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_operator.decide.render.overlay import Edit, by_others, covers, disowned, edits, leaves, lost, merge, written

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=12,
)


def test_lists_with_identity_merge_by_it_and_others_replace():
    base = {"containers": [{"name": "daemon", "env": [{"name": "A", "value": "1"}], "args": ["x"]}, {"name": "side"}]}
    over = {"containers": [{"name": "daemon", "env": [{"name": "B", "value": "2"}], "args": ["y", "z"]}, {"name": "new"}]}
    daemon, side, new = merge(base, over)["containers"]
    assert daemon == {"name": "daemon", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "args": ["y", "z"]}
    assert (side, new) == ({"name": "side"}, {"name": "new"})


def test_a_volume_is_replaced_as_a_whole():
    base = {"volumes": [{"name": "run", "emptyDir": {}}]}
    assert merge(base, {"volumes": [{"name": "run", "configMap": {"name": "c"}}]}) == {
        "volumes": [{"name": "run", "configMap": {"name": "c"}}]
    }


@given(JSON)
def test_merging_with_nothing_or_itself_changes_nothing(value):
    assert merge({"a": value}, {}) == {"a": value} == merge({}, {"a": value}) == merge({"a": value}, {"a": value})


@given(JSON)
def test_nothing_is_lost_in_itself(value):
    assert lost(value, value) is None


@pytest.mark.parametrize(
    ("allowed", "path", "verdict"),
    [
        ("metadata.labels", ("metadata", "labels", "team"), True),
        ("metadata.labels", ("metadata", "labels", "example.com/team"), True),
        ("metadata.labels", ("metadata", "labelsx"), False),
        ("metadata.labels", ("metadata",), False),
        ("metadata.labels.team", ("metadata", "labels", "team.evil/x"), False),
        ("metadata.labels.example.com/team", ("metadata", "labels", "example.com/team"), True),
        ("spec", ("spec", "nodeSelector", "zone"), True),
        ("spec.containers[daemon].env", ("spec", "containers", "[daemon]", "env", "[A]", "value"), True),
        ("spec.containers[daemon].env", ("spec", "containers", "[other]", "env", "[A]", "value"), False),
        ("spec.containers[daemon].env", ("spec", "containers", "[daemon]", "image"), False),
        ("spec.containers", ("spec", "containers", "[daemon]", "image"), True),
    ],
)
def test_an_allowed_path_covers_itself_and_what_is_below(allowed, path, verdict):
    assert covers(allowed, path) is verdict


def test_leaves_name_every_value_that_an_overlay_sets():
    overlay = {"metadata": {"labels": {"a.b/c": "1"}}, "spec": {"containers": [{"name": "daemon", "env": [{"name": "A", "value": "1"}]}]}}
    assert [written(path) for path in leaves(overlay)] == ["metadata.labels.a.b/c", "spec.containers[daemon].env[A].value"]


def test_an_entry_that_only_names_itself_is_still_a_leaf():
    assert [written(path) for path in leaves({"spec": {"containers": [{"name": "spy"}]}})] == ["spec.containers[spy]"]


@pytest.mark.parametrize(
    ("wanted", "live"),
    [
        ({"a": 1}, {"a": 1, "defaulted": True}),
        ({"nodeSelector": {}, "tolerations": [], "hostNetwork": False, "x": None}, {}),
        ({"requests": {"cpu": "0.5", "memory": "1024Mi"}}, {"requests": {"cpu": "500m", "memory": "1Gi"}}),
        ({"limits": {"cpu": 1}}, {"limits": {"cpu": "1"}}),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "Z"}, {"name": "A", "value": "1"}]}),
    ],
)
def test_what_the_server_rewrites_is_no_drift(wanted, live):
    assert lost(wanted, live) is None


@pytest.mark.parametrize(
    ("wanted", "live", "path"),
    [
        ({"spec": {"replicas": 2}}, {"spec": {"replicas": 1}}, "spec.replicas"),
        ({"spec": {"replicas": 2}}, {"spec": {}}, "spec.replicas"),
        ({"spec": {"replicas": 2}}, {}, "spec"),
        ({"readOnly": True}, {"readOnly": 1}, "readOnly"),
        (
            {"containers": [{"name": "daemon", "image": "a"}]},
            {"containers": [{"name": "daemon", "image": "b"}]},
            "containers[daemon].image",
        ),
        ({"containers": [{"name": "daemon"}]}, {"containers": [{"name": "other"}]}, "containers"),
        ({"args": ["a", "b"]}, {"args": ["a"]}, "args"),
        ({"env": [{"name": "A", "value": "1.0"}]}, {"env": [{"name": "A", "value": "1"}]}, "env[A].value"),
    ],
)
def test_drift_is_named_by_its_path(wanted, live, path):
    assert written(lost(wanted, live)) == path


PORT = 'k:{"containerPort":8000,"protocol":"TCP"}'
MOUNT = 'k:{"mountPath":"/m"}'


def live(fields, spec, manager="vandal"):
    ours = {"manager": "pagoda-operator", "fieldsV1": {"f:metadata": {"f:labels": {}}, "f:spec": {"f:replicas": {}}}}
    status = {"manager": "kube-controller-manager", "subresource": "status", "fieldsV1": {"f:status": {"f:replicas": {}}}}
    theirs = {"manager": manager, "fieldsV1": {"f:metadata": {"f:annotations": {"f:note": {}}}, "f:spec": fields}}
    return {"metadata": {"managedFields": [ours, status, theirs]}, "spec": spec}


@pytest.mark.parametrize(
    ("fields", "wanted", "spec", "paths"),
    [
        ({"f:hostNetwork": {}}, {}, {"hostNetwork": True}, ["spec.hostNetwork"]),
        ({"f:replicas": {}}, {"replicas": 1}, {"replicas": 5}, ["spec.replicas"]),
        ({"f:replicas": {}}, {"replicas": 5}, {"replicas": 5}, []),
        ({"f:paused": {}}, {}, {}, []),  # removed since
        (
            {"f:containers": {'k:{"name":"spy"}': {".": {}, "f:image": {}, "f:name": {}}}},
            {"containers": [{"name": "daemon"}]},
            {"containers": [{"name": "daemon"}, {"name": "spy", "image": "i"}]},
            ["spec.containers[spy]"],
        ),
        (
            {"f:ports": {PORT: {".": {}, "f:containerPort": {}, "f:hostPort": {}, "f:protocol": {}}}},
            {"ports": [{"containerPort": 8000}]},
            {"ports": [{"containerPort": 8000, "protocol": "TCP", "hostPort": 8000}]},
            ["spec.ports[8000/TCP].hostPort", "spec.ports[8000/TCP].protocol"],
        ),
        ({"f:volumeMounts": {MOUNT: {"f:name": {}}}}, {"volumeMounts": [{"mountPath": "/m", "name": "a"}]}, None, []),
        (
            {"f:securityContext": {".": {}, "f:privileged": {}}},
            {},
            {"securityContext": {"privileged": True}},
            ["spec.securityContext.privileged"],
        ),
        ({"f:nodeSelector": {}}, {"nodeSelector": {"a": "1"}}, {"nodeSelector": {"a": "1", "b": "2"}}, ["spec.nodeSelector"]),
        ({"f:limits": {"f:cpu": {}}}, {"limits": {"cpu": "0.5"}}, {"limits": {"cpu": "500m"}}, []),
        (
            {"f:template": {"f:metadata": {"f:annotations": {".": {}, "f:kubectl.kubernetes.io/restartedAt": {}}}}},
            {"template": {"metadata": {}}},
            {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}},
            [],
        ),
    ],
)
def test_what_another_manager_set_otherwise_is_named(fields, wanted, spec, paths):
    spec = wanted if spec is None else spec
    found = edits({"spec": wanted}, live(fields, spec))
    assert [written(edit.path) for edit in found] == paths
    assert {edit.manager for edit in found} <= {"vandal"}


def test_only_the_spec_of_other_managers_counts_and_only_that_is_disowned():
    meta = live({"f:paused": {}}, {})["metadata"]
    assert [entry["manager"] for entry in by_others(meta)] == ["vandal"]
    ours, status, theirs = meta["managedFields"]
    assert disowned(meta) == [ours, status, theirs | {"fieldsV1": {"f:metadata": {"f:annotations": {"f:note": {}}}}}]
    bare = {"managedFields": [ours, {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]}
    assert disowned(bare) == [ours]
    assert by_others({}) == by_others({"managedFields": [{}]}) == []
    assert edits({"spec": {}}, live({"f:paused": {}}, {"paused": True}, "pagoda-operator")) == ()
    assert edits({"spec": {}}, live({"f:paused": {}}, {"paused": True})) == (Edit(("spec", "paused"), "vandal"),)
