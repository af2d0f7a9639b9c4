"""oci:// against a real registry on loopback, and against a double for what that one never does."""

import asyncio
import hashlib
import json
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from pathlib import Path
from platform import machine
from urllib.parse import parse_qs, urlsplit

import pytest
from pagoda_fetch.core.errors import Forbidden, Mismatch, NotFound, Refused
from support.clients.archives import image, kit, tar
from support.clients.fetching import LARGE, TAKEN, Fetcher, contents, model_files
from support.servers.fetch_hub import running_hub
from support.servers.fetch_servers import oci_registry, push, push_index, push_layers, wire

FILES = model_files()


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    with oci_registry(tmp_path_factory.mktemp("registry")) as running:
        push(running, "models/llama", FILES)
        yield running


@pytest.fixture
def line(registry):
    with wire(registry) as between:
        yield between


@pytest.mark.parametrize("media", ["application/octet-stream", "application/vnd.oci.image.layer.v1.tar"])
async def test_an_artifact_arrives_whole(tmp_path, registry, line, media):
    """The second is what `oras push` says of files unless it is told another type."""
    push(registry, "models/typed", FILES, media=media)
    place = await Fetcher(tmp_path).fetch(f"oci://{line.address}/models/typed", "v1")
    assert contents(place) == {name: FILES[name] for name in TAKEN}


async def test_a_cut_goes_on_where_it_was_cut(tmp_path, line):
    line.cuts = [2_000_000]
    place = await Fetcher(tmp_path, parallel=1).fetch(f"oci://{line.address}/models/llama", "v1")
    assert contents(place)[LARGE] == FILES[LARGE]
    whole = sum(len(FILES[name]) for name in TAKEN)
    assert line.cuts == []
    assert whole < line.sent < whole + 1_000_000


async def test_the_digest_is_known_before_a_byte_moves(tmp_path, line):
    fetcher = Fetcher(tmp_path)
    with pytest.raises(Mismatch):
        await fetcher.fetch(f"oci://{line.address}/models/llama", "v1", digest=f"sha256:{'0' * 64}")
    assert line.sent < 10_000


async def test_a_pinned_manifest_is_fetched_and_found_again_without_the_registry(tmp_path, registry, line):
    pinned = push(registry, "models/pinned", FILES)
    fetcher = Fetcher(tmp_path, attempts=1)
    place = await fetcher.fetch(f"oci://{line.address}/models/pinned", pinned)
    sent = line.sent
    assert await fetcher.fetch(f"oci://{line.address}/models/pinned", pinned) == place
    assert line.sent == sent


async def test_what_is_not_there_is_said(tmp_path, registry):
    with pytest.raises(NotFound):
        await Fetcher(tmp_path).fetch(f"oci://{registry}/models/qwen", "v1")
    with pytest.raises(NotFound):
        await Fetcher(tmp_path).fetch(f"oci://{registry}/models/llama", "v9")


@pytest.mark.parametrize("title", ["../../etc/passwd.json", "/etc/x.json", "a/../../b.json"])
async def test_a_title_that_leaves_its_folder_refuses_the_artifact(tmp_path, registry, title):
    push(registry, "models/hostile", {**FILES, title: b"{}"})
    fetcher = Fetcher(tmp_path)
    with pytest.raises(Refused, match="names must not have"):
        await fetcher.fetch(f"oci://{registry}/models/hostile", "v1")
    assert fetcher.published() == []


@pytest.mark.parametrize(("others", "found"), [([], "only"), ([("amd64", "x"), ("arm64", "y")], "mine"), ([("s390x", "x")], "none")])
async def test_of_an_index_its_only_manifest_is_taken_or_the_one_for_this_machine(tmp_path, registry, others, found):
    name = f"models/index-{found}"
    ours = {**FILES, "generation_config.json": found.encode()}
    manifests = [(push(registry, name, {**FILES, "generation_config.json": text.encode()}, text), where) for where, text in others]
    mine = {"x86_64": "amd64", "aarch64": "arm64"}[machine()]
    manifests = [(digest, where) for digest, where in manifests if found == "none" or where != mine]
    push_index(registry, name, [*manifests, (push(registry, name, ours, "mine"), mine if others and found == "mine" else "")], "v1")
    fetching = Fetcher(tmp_path).fetch(f"oci://{registry}/{name}", "v1")
    if found == "none":
        with pytest.raises(Refused, match="has 2 manifests, and not one for linux/"):
            await fetching
    else:
        assert contents(await fetching)["generation_config.json"] == found.encode()


@pytest.mark.deep
async def test_a_modelcar_and_a_modelkit_of_a_registry_are_models_by_the_command_line(tmp_path, registry):
    """An index stands for the image, as image builders push them."""
    made = push_layers(
        registry, "models/car", *image(tar({"etc/passwd": b"x"}), tar({f"models/{n}": body for n, body in FILES.items()})), "x"
    )
    push_index(registry, "models/car", [(made, {"x86_64": "amd64", "aarch64": "arm64"}[machine()])], "v1")
    push_layers(registry, "models/kit", *kit({"model": tar(FILES), "code": b"not read"}))
    for name in ("car", "kit"):
        argv = [
            "-P",
            "-m",
            "pagoda_fetch",
            "fetch",
            f"oci://{registry}/models/{name}",
            "--revision",
            "v1",
            "--to",
            str(tmp_path),
            "--reserve",
            "0",
        ]
        done = await asyncio.to_thread(subprocess.run, [sys.executable, *argv], capture_output=True, text=True, check=False)
        assert (done.returncode, contents(Path(done.stdout.strip()))) == (0, {name: FILES[name] for name in TAKEN}), done.stderr
    assert [path.name for path in tmp_path.glob("sha256-*")] == [Path(done.stdout.strip()).name], "one content is one folder"


def small_artifact():
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"x" * 1000}
    blobs = {f"sha256:{hashlib.sha256(body).hexdigest()}": body for body in files.values()}
    layers = [
        {"mediaType": "x/y", "digest": digest, "size": len(body), "annotations": {"org.opencontainers.image.title": name}}
        for (name, body), digest in zip(files.items(), blobs, strict=True)
    ]
    return files, blobs, json.dumps({"layers": layers}).encode()


class Guarded:
    """A registry behind a token service, its blobs behind a redirect to elsewhere. `uses`: for so many requests a token is good."""

    def __init__(self, hub, elsewhere, realm="", uses=1000):
        self.files, self.blobs, self.manifest = small_artifact()
        self.hub, self.elsewhere = hub, elsewhere
        self.realm = realm or f"{hub.url}/token"
        self.tokens, self.uses, self.used = 0, uses, Counter()
        hub.extra["/token"] = self.token
        hub.extra["/v2/org/name/manifests/v1"] = lambda request: self.guarded(request, self.manifest)
        for digest, body in self.blobs.items():
            hub.extra[f"/v2/org/name/blobs/{digest}"] = lambda request, digest=digest: self.redirect(request, digest)
            elsewhere.extra[f"/blob/{digest}"] = lambda request, body=body: request.answer(200, body)

    def token(self, request):
        right = b64encode(b"robot:s3cret").decode()
        asked = parse_qs(urlsplit(request.path).query)
        if request.headers.get("authorization") != f"Basic {right}" or asked != {"service": ["r"], "scope": ["repository:org/name:pull"]}:
            request.answer(401, b"")
            return
        self.tokens += 1
        request.answer(200, json.dumps({"token": f"t{self.tokens}"}).encode())

    def good(self, request):
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.used[token] += 1
        return token == f"t{self.tokens}" and self.used[token] <= self.uses

    def guarded(self, request, body):
        if self.good(request):
            request.answer(200, body)
        else:
            request.answer(401, b"", {"www-authenticate": f'Bearer realm="{self.realm}",service="r",scope="repository:org/name:pull"'})

    def redirect(self, request, digest):
        if self.good(request):
            request.answer(307, b"", {"location": f"{self.elsewhere.url}/blob/{digest}?sig=1"})
        else:
            request.answer(401, b"")


async def test_a_credential_buys_a_token_and_neither_goes_to_where_blobs_lie(tmp_path):
    with running_hub({}) as hub, running_hub({}) as elsewhere:
        guarded = Guarded(hub, elsewhere)
        fetcher = Fetcher(tmp_path)
        host = hub.url.removeprefix("http://")
        docker = {"auths": {host: {"auth": b64encode(b"robot:s3cret").decode()}}}
        name = fetcher.credential("registry", **{".dockerconfigjson": json.dumps(docker)})
        place = await fetcher.fetch(f"oci://{host}/org/name", "v1", credential=name)
        assert contents(place) == guarded.files
        assert len(elsewhere.asked) == 2
        assert not [headers for _, headers in elsewhere.asked if "authorization" in headers]
        with pytest.raises(Forbidden):
            await fetcher.fetch(f"oci://{host}/org/name", "v1", credential=fetcher.credential("wrong", username="a", password="b"))


async def test_a_token_that_runs_out_between_two_files_is_renewed(tmp_path):
    with running_hub({}) as hub, running_hub({}) as elsewhere:
        guarded = Guarded(hub, elsewhere, uses=2)  # the manifest and one file
        fetcher = Fetcher(tmp_path, attempts=1, parallel=1)
        name = fetcher.credential("registry", username="robot", password="s3cret")
        place = await fetcher.fetch(f"oci://{hub.url.removeprefix('http://')}/org/name", "v1", credential=name)
        assert (contents(place), guarded.tokens) == (guarded.files, 2)


async def test_a_password_is_not_sent_in_the_clear_to_a_realm_elsewhere(tmp_path):
    with running_hub({}) as hub, running_hub({}) as elsewhere:
        Guarded(hub, elsewhere, realm=f"{elsewhere.url}/token")
        fetcher = Fetcher(tmp_path)
        name = fetcher.credential("registry", username="robot", password="s3cret")
        with pytest.raises(Forbidden):
            await fetcher.fetch(f"oci://{hub.url.removeprefix('http://')}/org/name", "v1", credential=name)
        assert elsewhere.asked == []


REALMS = {
    "user": "{own}@{other}/token",
    "longer host": "{own}.example@{other}/token",
    "no slash": "{own}",
    "no TLS": "http://other.example/token",
    "no port": "https://registry.example:port/token",
    "no address": "https://[::x]/token",
}


@pytest.mark.parametrize("realm", REALMS.values(), ids=REALMS)
async def test_a_realm_that_only_begins_like_the_registry_or_is_no_address_gets_nothing(tmp_path, realm):
    with running_hub({}) as hub, running_hub({}) as elsewhere:
        Guarded(hub, elsewhere, realm=realm.format(own=hub.url, other=elsewhere.url.removeprefix("http://")))
        fetcher = Fetcher(tmp_path)
        name = fetcher.credential("registry", username="robot", password="s3cret")
        with pytest.raises((Forbidden, Refused)):
            await fetcher.fetch(f"oci://{hub.url.removeprefix('http://')}/org/name", "v1", credential=name)
        assert elsewhere.asked == []
        assert len(hub.asked) == 1


async def test_a_registry_whose_port_is_a_word_is_refused(tmp_path):
    with pytest.raises(Refused, match=r"registry\.example:port.* is not a valid address"):
        await Fetcher(tmp_path).fetch("oci://registry.example:port/org/name", "v1")
