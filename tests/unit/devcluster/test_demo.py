"""The demo's pure half: tags that follow from content, the chart's values, and the live view of a service."""

import ast
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from pagoda_devcluster.cluster.errors import BuildError, MissingPrerequisiteError
from pagoda_devcluster.demo import build, recipe
from pagoda_devcluster.demo.show import changes, documents

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """What image tags depend on, in a folder in which a test may change something for itself."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in ("contracts", "kube", "sizing", "placement", "kernels", "operator", "gateway", "fetch", "daemon", "requirements"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "hatch_build.py"):
        shutil.copy(ROOT / file, copy)
    return copy


@pytest.fixture(scope="module")
def unchanged(checkout):
    return tags(checkout)


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
def test_a_change_rebuilds_what_it_is_part_of_and_nothing_else(checkout, unchanged, path, rebuilt):
    text = (checkout / path).read_text()
    (checkout / path).write_text(f"{text}\n# changed\n")
    after = tags(checkout)
    (checkout / path).write_text(text)
    assert changed(unchanged, after) == rebuilt


@pytest.mark.deep
@pytest.mark.parametrize("component", [recipe.OPERATOR, recipe.GATEWAY, recipe.FETCH, recipe.DAEMON], ids=lambda component: component.name)
def test_an_image_carries_what_its_component_imports(component):
    trees = [ast.parse(path.read_text()) for path in (ROOT / component.folder).rglob("*.py")]
    imported = {
        node.module.partition(".")[0] for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    assert {name.removeprefix("pagoda_") for name in imported if name.startswith("pagoda_")} == set(component.folders)


def test_tags_do_not_depend_on_where_the_checkout_is(unchanged):
    assert unchanged == tags(ROOT)


def test_the_image_for_gpus_has_the_compiler_that_triton_starts_with_and_no_other_has():
    assert {component.name for component in COMPONENTS if {"gcc", "libc6-dev", "libpython3.11-dev"} <= set(component.debian)} == {"daemon"}
    assert len({recipe.base_image(component) for component in COMPONENTS}) == 2


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


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="an image's bytecode is Python 3.11's")
def test_packages_of_an_image_have_their_bytecode_beside_them_wherever_this_machine_keeps_its_own(tmp_path, monkeypatch):
    files = {
        "one.py": "NUMBER = 1\n",
        "one-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: one\nVersion: 1\n",
        "one-1.dist-info/RECORD": "",
    }
    files["one-1.dist-info/WHEEL"] = "Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(tmp_path / "one-1-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "elsewhere"))
    build._uv_install(tmp_path / "made", ["--no-deps", str(tmp_path / "one-1-py3-none-any.whl")])
    (compiled,) = (tmp_path / "made/__pycache__").iterdir()
    assert int.from_bytes(compiled.read_bytes()[4:8], "little") == 1  # by its source's hash, which nobody compares


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
