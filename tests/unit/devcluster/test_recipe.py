"""What is compiled, and when it is compiled again."""

from pathlib import Path

import pytest
from pagoda_devcluster.binaries import build, recipe
from pagoda_devcluster.binaries.recipe import Binary
from pagoda_devcluster.cluster.errors import BuildError, MissingPrerequisiteError
from pagoda_devcluster.machine import processes
from rich.console import Console

QUIET = Console(quiet=True)


def test_this_checkout_pins_the_versions_that_belong_together():
    found = recipe.of_checkout()
    assert (found.kubernetes, found.etcd, found.helm, found.kubeconform) == ("v1.35.4", "v3.6.5", "v3.20.2", "v0.7.0")
    names = [binary.name for binary in found.binaries]
    assert len(names) == len(set(names)) == 11


def test_every_staging_module_is_published_under_the_same_patch():
    text = (recipe.of_checkout().folder / "go.mod").read_text()
    replaced = [line for line in text.splitlines() if " => k8s.io/" in line]
    assert len(replaced) >= 31
    assert all(line.endswith(" v0.35.4") for line in replaced)


def test_helm_and_the_server_know_which_kubernetes_this_is():
    helm = next(binary for binary in recipe.of_checkout().binaries if binary.name == "helm")
    assert ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor", "35") in helm.variables
    server = recipe.kubernetes_binary("kube-apiserver", "v1.35.4")
    assert "-X k8s.io/component-base/version.gitVersion=v1.35.4" in " ".join(server.build_argv(Path("/x")))


def copy(source: recipe.Recipe, target: Path) -> Path:
    for file in recipe.RECIPE_FILES:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (target / file).write_text((source.folder / file).read_text())
    return target


def test_a_comment_changes_no_key_and_a_pin_does(tmp_path: Path):
    original = recipe.of_checkout()
    folder = copy(original, tmp_path)
    assert recipe.read(folder).key == original.key
    module = folder / "go.mod"
    module.write_text("// another comment\n\n" + module.read_text())
    assert recipe.read(folder).key == original.key
    module.write_text(module.read_text().replace("go.etcd.io/etcd/server/v3 v3.6.5", "go.etcd.io/etcd/server/v3 v3.6.6"))
    assert recipe.read(folder).key != original.key


def test_a_folder_without_module_files_says_where_to_run(tmp_path: Path):
    with pytest.raises(MissingPrerequisiteError, match="checkout"):
        recipe.read(tmp_path)


def test_only_what_is_missing_is_built(tmp_path: Path):
    found = recipe.of_checkout()
    folder = build.folder_of(found, tmp_path)
    folder.mkdir(parents=True)
    for binary in found.binaries[1:]:
        (folder / binary.name).touch()
    (folder / f".{found.binaries[0].name}.part").touch()
    assert [binary.name for binary in build.missing(found, tmp_path)] == ["kube-apiserver"]
    (folder / "kube-apiserver").touch()
    assert build.ensure(found, tmp_path, QUIET) == folder


def test_a_binary_that_says_another_version_is_refused(tmp_path: Path):
    script = tmp_path / "tool"
    script.write_text("#!/bin/sh\necho v1.2.3\n")
    script.chmod(0o755)
    build.verify(Binary("tool", "x", version_text="v1.2.3"), script)
    with pytest.raises(BuildError, match=r"v1\.2\.3.*instead of v9"):
        build.verify(Binary("tool", "x", version_text="v9"), script)


def fake_go(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (folder / "go").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_build_that_fails_names_the_binary_and_the_compilers_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_go(tmp_path, monkeypatch, "echo some/package >&2; echo 'x.go:1: broken' >&2; exit 1")
    seen: list[str] = []
    with pytest.raises(BuildError, match=r"tool did not compile.*x\.go:1: broken"):
        build.build_one(recipe.of_checkout(), Binary("tool", "x"), tmp_path, seen.append)
    assert seen == ["some/package"]


def test_a_build_that_is_stopped_leaves_neither_a_compiler_nor_half_a_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_go(tmp_path, monkeypatch, f"touch {tmp_path}/.tool.$PPID.part; echo $$ > {tmp_path}/pid; echo some/package >&2; exec sleep 60")

    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build.build_one(recipe.of_checkout(), Binary("tool", "x"), tmp_path, stop)
    assert list(tmp_path.glob(".tool.*")) == []
    assert not processes.alive(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(("version", "enough"), [("go1.24.9", False), ("go1.25", True), ("go1.26rc1", True), ("devel +abc", True)])
def test_an_old_toolchain_is_refused_before_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, enough: bool):
    fake_go(tmp_path, monkeypatch, f"echo '{version}'")
    if enough:
        build.check_toolchain()
    else:
        with pytest.raises(MissingPrerequisiteError, match=r"too old: install Go 1\.25"):
            build.check_toolchain()


def test_without_a_toolchain_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingPrerequisiteError, match=r"install Go 1\.25"):
        build.check_toolchain()
