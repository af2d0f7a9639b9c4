"""What an address, a revision, a digest and a credential's name may be."""

import json
from base64 import b64encode

import pytest
from pagoda_fetch.core.address import check_digest, parse
from pagoda_fetch.core.credentials import load
from pagoda_fetch.core.errors import ConfigRejected, Unsupported


@pytest.mark.parametrize(
    ("uri", "host", "path"),
    [
        ("hf://org/name", "org", "name"),
        ("s3://bucket/a/b", "bucket", "a/b"),
        ("oci://registry.example:5000/a/b", "registry.example:5000", "a/b"),
        ("pvc://claim", "claim", ""),
        ("gs://bucket/a/", "bucket", "a"),
    ],
)
def test_addresses_are_read(uri, host, path):
    assert parse(uri)[1:3] == (host, path)


@pytest.mark.parametrize(
    "uri",
    [
        *(
            "hf://org",
            "hf://../name",
            "hf://org/../name",
            "hf://user:pass@org/name",
            "hf://org/name?x=1",
            "hf://org/name#x",
            "hf:/org/name",
        ),
        *(
            "s3://bucket/a\nb",
            "s3://bucket/a b",
            "pvc:///etc",
            "oci://registry",
            "",
            "hf://" + "a" * 600 + "/b",
            "hf://org/na\x00me",
            "s3://b/./a",
        ),
    ],
)
def test_malformed_addresses_are_refused(uri):
    with pytest.raises(ConfigRejected):
        parse(uri)


@pytest.mark.parametrize("uri", ["file://etc/passwd", "wasbs://container/a", "http://169.254.169.254/latest"])
def test_other_schemes_are_named_as_not_built(uri):
    with pytest.raises(Unsupported, match="accepted: hf://, s3://, gs://, az://, oci://, https://, pvc://"):
        parse(uri)


@pytest.mark.parametrize(
    ("uri", "revision"), [("hf://a/b", "../x"), ("hf://a/b", "a b"), ("hf://a/b", "-x"), ("s3://a/b", "v1"), ("pvc://a", "v1")]
)
def test_revisions_that_mean_nothing_are_refused(uri, revision):
    with pytest.raises(ConfigRejected, match="revision"):
        parse(uri, revision)


@pytest.mark.parametrize(
    ("uri", "revision", "immutable"),
    [
        ("hf://a/b", "a" * 40, True),
        ("hf://a/b", "main", False),
        ("hf://a/b", "", False),
        ("oci://a/b", f"sha256:{'a' * 64}", True),
        ("oci://a/b", "v1", False),
    ],
)
def test_what_names_a_content_for_ever(uri, revision, immutable):
    assert parse(uri, revision).immutable is immutable


def test_digests_are_checked():
    assert check_digest("") == ""
    with pytest.raises(ConfigRejected, match="must be sha256"):
        check_digest("md5:abc")


@pytest.fixture
def mounted(tmp_path):
    """As the kubelet mounts a Secret: links through `..data`."""
    folder, data = tmp_path / "hub", tmp_path / "hub/..2026_01_01"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to("..2026_01_01")
    (data / "token").write_text("s3cret\n")
    (folder / "token").symlink_to("..data/token")
    return tmp_path


def test_a_mounted_secret_is_read_through_the_kubelets_links(mounted):
    assert load("hub", mounted, {}).get("HF_TOKEN") == "s3cret"


def test_a_credential_shows_no_value_of_itself(mounted):
    assert "s3cret" not in repr(load("hub", mounted, {})) + str(load("", mounted, {"HF_TOKEN": "s3cret"}))


@pytest.mark.parametrize("name", ["gone", "../hub", "hub/../hub", ".", "Hub", "a" * 64])
def test_names_that_are_no_mounted_credential_are_refused(mounted, name):
    with pytest.raises(ConfigRejected, match="not mounted"):
        load(name, mounted, {})


def test_the_environment_counts_only_where_no_credential_is_named(mounted):
    environment = {"HF_TOKEN": "shell", "AWS_ACCESS_KEY_ID": "AK", "PATH": "/bin"}
    assert load("", mounted, environment).words == {"HF_TOKEN": "shell", "AWS_ACCESS_KEY_ID": "AK"}
    assert load("hub", mounted, environment).words == {"HF_TOKEN": "s3cret"}


def test_a_docker_login_is_for_its_own_registry(tmp_path):
    (tmp_path / "reg").mkdir()
    auth = b64encode(b"robot:pass:word").decode()
    auths = {"https://ghcr.example/v2/": {"auth": auth}, "other:5000": {"username": "u", "password": "p"}}
    (tmp_path / "reg/.dockerconfigjson").write_text(json.dumps({"auths": auths}))
    credential = load("reg", tmp_path, {})
    assert credential.registry("ghcr.example") == ("robot", "pass:word")
    assert (credential.registry("other:5000"), credential.registry("evil.example")) == (("u", "p"), None)
    (tmp_path / "reg/.dockerconfigjson").write_text('{"auths": [s3cret]}')
    with pytest.raises(ConfigRejected) as raised:
        load("reg", tmp_path, {})
    assert "s3cret" not in str(raised.value)
