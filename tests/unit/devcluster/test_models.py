"""What `load-model` refuses before it touches the cluster, and the objects it makes."""

from pathlib import Path

import pytest
from pagoda_devcluster.cluster.errors import UsageError
from pagoda_devcluster.cluster.spec import ClusterSpec, Nodes
from pagoda_devcluster.providers import models
from pagoda_devcluster.providers.models import Claim

SPEC = ClusterSpec("dev", 0, Nodes.KUBELET, Path("/c"), Path("/b"))
CLAIM = Claim("team", "llama")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    (model / "deep").mkdir(parents=True)
    for path in (model, model / "deep"):
        path.chmod(0o755)
    for file in (model / "config.json", model / "deep" / "weights"):
        file.write_text("x")
        file.chmod(0o644)
    return model


def test_a_readable_folder_is_accepted_whatever_its_parents_allow(folder: Path):
    folder.parent.chmod(0o700)
    assert models.check_folder(folder).unreadable == []


@pytest.mark.parametrize(("entry", "mode"), [("deep/weights", 0o640), ("deep", 0o750), ("deep", 0o744), (".", 0o700)])
def test_an_entry_that_others_cannot_read_is_refused_with_the_remedy(folder: Path, entry: str, mode: int):
    (folder / entry).chmod(mode)
    with pytest.raises(UsageError, match=r"chmod -R a\+rX"):
        models.check_folder(folder)


def test_links_that_lead_out_are_counted_and_those_within_are_not(folder: Path):
    (folder / "inside").symlink_to("deep/weights")
    (folder / "outside").symlink_to("/etc/hostname")
    assert models.check_folder(folder).outside == [folder / "outside"]


def test_a_folder_that_the_node_cannot_see_is_refused():
    with pytest.raises(UsageError, match="not visible inside the node"):
        models.check_folder(Path("/proc/self"))


def test_a_file_is_no_folder(folder: Path):
    with pytest.raises(UsageError, match="is not a folder"):
        models.check_folder(folder / "config.json")


@pytest.mark.parametrize("text", ["llama", "/llama", "team/", "a/b/c", ""])
def test_a_claim_is_a_namespace_and_a_name(text: str):
    with pytest.raises(UsageError, match="NAMESPACE/NAME"):
        models.parse_claim(text)


def test_volumes_of_claims_that_look_alike_differ_and_fit_a_name():
    assert Claim("a-b", "c").volume != Claim("a", "b-c").volume
    assert len(Claim("n" * 63, "m" * 200).volume) <= 63


def test_volume_and_claim_name_each_other_and_no_class():
    volume, claim = models.volume(SPEC, CLAIM, Path("/m"), "6Gi"), models.volume_claim(CLAIM, "6Gi")
    assert volume["spec"]["claimRef"]["name"] == claim["metadata"]["name"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""
    assert volume["spec"]["accessModes"] == ["ReadOnlyMany"]


def existing(path: str) -> dict:
    return {"spec": {"local": {"path": path}}}


BOUND = {"spec": {"volumeName": CLAIM.volume}}


@pytest.mark.parametrize(
    ("volume", "claim", "refused"),
    [
        (None, None, None),
        (existing("/m"), None, None),
        (existing("/m"), BOUND, None),
        (existing("/other"), BOUND, "shows /other, not /m"),
        (existing("/other"), None, "shows /other, not /m"),
        (None, {"spec": {"volumeName": "theirs"}}, "bound to theirs"),
        (None, {"spec": {}}, "bound to nothing"),
    ],
)
def test_what_exists_is_confirmed_or_refused(volume, claim, refused):
    reason = models.contradiction(CLAIM, Path("/m"), volume, claim)
    assert reason is None if refused is None else refused in reason
