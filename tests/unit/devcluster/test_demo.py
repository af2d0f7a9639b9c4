"""The demo's pure half: tags that follow from content, the chart's values, and the live view of a service."""

import ast
import json
import os
import shutil
from pathlib import Path

import pytest
from pagoda_devcluster.cluster.errors import BuildError, MissingPrerequisiteError
from pagoda_devcluster.demo import build, recipe
from pagoda_devcluster.demo.show import changes, documents

ROOT = Path(__file__).parents[3]


@pytest.fixture
def checkout(tmp_path):
    """What image tags depend on, in a folder that a test may change."""
    for folder in ("contracts", "kube", "sizing", "placement", "kernels", "operator", "gateway", "fetch", "daemon", "requirements"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "hatch_build.py"):
        shutil.copy(ROOT / file, tmp_path)
    return tmp_path


COMPONENTS = (recipe.OPERATOR, recipe.GATEWAY, recipe.FETCH, recipe.DAEMON, recipe.DAEMON_THIN)


def tags(root):
    return {component.name: recipe.image(root, component) for component in COMPONENTS}


def changed(before, after):
    return {name for name in before if before[name] != after[name]}


CHANGES = [
    ("operator/pagoda_operator/decide/plan.py", {"operator"}),
    ("contracts/pagoda_contracts/names.py", {"operator", "gateway", "fetch", "daemon", "daemon-thin"}),
    ("requirements/daemon.txt", {"daemon"}),
    ("kube/pagoda_kube/cache.py", {"operator", "gateway"}),
    ("placement/pagoda_placement/place.py", {"operator"}),
    ("gateway/Dockerfile", {"gateway"}),
    ("fetch/pagoda_fetch/core/names.py", {"fetch"}),
    ("kernels/pagoda_kernels/cpu/src/attention.h", {"daemon", "daemon-thin"}),
    ("operator/README.md", set()),
]


@pytest.mark.parametrize(("path", "rebuilt"), CHANGES, ids=[path for path, _ in CHANGES])
def test_a_change_rebuilds_what_it_is_part_of_and_nothing_else(checkout, path, rebuilt):
    before = tags(checkout)
    with (checkout / path).open("a") as file:
        file.write("\n# changed\n")
    assert changed(before, tags(checkout)) == rebuilt


@pytest.mark.deep
@pytest.mark.parametrize("component", [recipe.OPERATOR, recipe.GATEWAY, recipe.FETCH, recipe.DAEMON], ids=lambda component: component.name)
def test_an_image_carries_what_its_component_imports(component):
    trees = [ast.parse(path.read_text()) for path in (ROOT / component.folder).rglob("*.py")]
    imported = {
        node.module.partition(".")[0] for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    assert {name.removeprefix("pagoda_") for name in imported if name.startswith("pagoda_")} == set(component.folders)


def test_tags_do_not_depend_on_where_the_checkout_is(checkout):
    assert tags(checkout) == tags(ROOT)


def test_chart_values_mount_the_dependencies_where_the_image_looks_for_them():
    profile = recipe.chart_values(dict.fromkeys(COMPONENTS, "an/image:1"))["defaultProfile"]
    pod = profile["podTemplate"]["spec"]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "deps", "mountPath": recipe.DEPS_MOUNT, "readOnly": True}]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": recipe.DEPS_CLAIM, "readOnly": True}
    assert f":{recipe.DEPS_MOUNT} " in (ROOT / "daemon/Dockerfile").read_text()


def make_half(target):
    with build.finished(target) as made:
        made.write_text("half")
        raise RuntimeError("half way")


def test_a_product_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "made"
    with pytest.raises(RuntimeError, match="half way"):
        make_half(target)
    assert list(tmp_path.iterdir()) == []
    with build.finished(target) as made:
        made.write_text("whole")
    with build.finished(target) as again:
        assert again is None
    assert target.read_text() == "whole"


def test_of_two_that_make_one_product_at_once_the_first_stays(tmp_path):
    target = tmp_path / "deps" / "a-1"
    with build.finished(target) as late, build.finished(target) as early:
        for made, text in ((late, "late"), (early, "early")):
            made.mkdir()
            (made / "file").write_text(text)
    assert (target / "file").read_text() == "early"
    assert [path.name for path in target.parent.iterdir()] == ["a-1"]


def test_old_products_go_and_other_components_stay(tmp_path):
    names = ["daemon_1.tar", "daemon_2.tar", "daemon_3.tar", "daemon_4.tar", "daemon-thin_1.tar", ".daemon_5.tar"]
    for age, name in enumerate(names):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (age, age))
    build.prune(tmp_path / "daemon_1.tar", "daemon_")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({*names} - {"daemon_2.tar"})


def test_a_missing_tool_and_a_failing_one_are_named():
    with pytest.raises(MissingPrerequisiteError, match="no-such-tool is missing"):
        build.run(["no-such-tool"])
    with pytest.raises(BuildError, match=r"ls .* exited 2: .*nowhere"):
        build.run(["ls", "/nowhere"])


def service(generation=1, observed=1, **conditions):
    found = [{"type": kind, "status": status, "reason": reason, "message": "m"} for kind, (status, reason) in conditions.items()]
    return {"metadata": {"generation": generation}, "status": {"observedGeneration": observed, "conditions": found}}


def test_the_live_view_shows_each_change_once_and_ends_with_ready():
    story = [
        {"metadata": {"generation": 1}},
        service(Reconciling=("True", "CreatingPods"), Ready=("Unknown", "CreatingPods")),
        service(Reconciling=("True", "CreatingPods"), Ready=("False", "CreatingPods")),
        service(Reconciling=("True", "LoadingModel"), Ready=("False", "LoadingModel")),
        service(Ready=("True", "Ready")),
        service(Reconciling=("True", "never read")),
    ]
    reported = list(changes(story))
    assert [line.reason for line in reported] == ["Waiting", "CreatingPods", "LoadingModel", "Ready"]
    assert reported[-1].ready


def test_the_live_view_ends_with_stalled_and_ignores_an_old_status():
    old = service(generation=2, observed=1, Ready=("True", "Ready"))
    stalled = service(generation=2, observed=2, Stalled=("True", "ModelRejected"), Ready=("False", "ModelRejected"))
    assert [(line.reason, line.ready, line.stalled) for line in changes([old, stalled])] == [
        ("Waiting", False, False),
        ("ModelRejected", False, True),
    ]


def test_watched_documents_are_read_as_soon_as_each_is_whole():
    texts = [json.dumps({"a": {"b": [1, {"}": "}"}]}}, indent=4), json.dumps({"c": "line}\n}"}, indent=4)]
    lines = [line + "\n" for text in texts for line in text.split("\n")]
    reader = documents(iter(lines))
    assert [next(reader), next(reader)] == [json.loads(text) for text in texts]
