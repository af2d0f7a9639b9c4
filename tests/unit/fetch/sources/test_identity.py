"""The cloud identity of a pod's ServiceAccount, at doubles of the clouds' token endpoints."""

from __future__ import annotations

import json

import pytest
from pagoda_contracts.names import POD_IDENTITY
from pagoda_fetch.core.credentials import IDENTITY_WORDS
from pagoda_fetch.core.errors import ConfigRejected, Forbidden
from support.clients.fetch_sources import shelf
from support.clients.fetching import TAKEN, Fetcher, contents, model_files
from support.servers.certificates import CERT, write_pair
from support.servers.fetch_hub import running_hub

FILES = model_files(size=300_000)
ROLE = "arn:aws:iam::123456789012:role/reader"
ASSUMED = b"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
<Credentials><AccessKeyId>ASIAEXAMPLE</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""
RIGHT = {name: FILES[name] for name in TAKEN}


@pytest.fixture
def hub():
    with running_hub(dict(FILES)) as running:
        yield running


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "token"
    file.write_text("projected.by.the.kubelet")
    return file


def fetcher(folder, hub, **environment):
    made = Fetcher(folder, hub.url)
    made.around = made.around.__class__(hub.url, made.credentials, made.claims, environment=environment, limits=made.limits)
    return made


async def fetched(folder, hub, uri, **environment):
    return contents(await fetcher(folder, hub, **environment).fetch(uri, credential=POD_IDENTITY))


async def test_irsa(tmp_path, token, hub, monkeypatch):
    """An STS is asked by TLS only."""
    shelf("s3", hub)
    write_pair(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / CERT))
    with running_hub({}, tls=tmp_path) as sts:
        sts.extra["/"] = lambda request: request.answer(200, ASSUMED)
        words = {"AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ENDPOINT_URL_STS": sts.url}
        assert await fetched(tmp_path, hub, "s3://models/llama", **words, AWS_ENDPOINT_URL=hub.url) == RIGHT
        assert {(query["RoleArn"][0], query["WebIdentityToken"][0]) for query in sts.queries} == {(ROLE, token.read_text())}
    assert all("ASIAEXAMPLE" in headers["authorization"] for headers in hub.asked_for("/models"))


async def test_eks_pod_identity(tmp_path, token, hub):
    shelf("s3", hub)
    issued = {"AccessKeyId": "ASIAEXAMPLE", "SecretAccessKey": "s", "Token": "session", "Expiration": "2099-01-01T00:00:00Z"}
    hub.extra["/v1/credentials"] = lambda request: request.answer(200, json.dumps(issued).encode())
    words = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{hub.url}/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token)}
    assert await fetched(tmp_path, hub, "s3://models/llama", **words, AWS_ENDPOINT_URL=hub.url) == RIGHT
    (asked,) = hub.asked_for("/v1/credentials")
    assert asked["authorization"] == token.read_text()
    assert all("ASIAEXAMPLE" in headers["authorization"] for headers in hub.asked_for("/models"))


async def test_azure_workload_identity(tmp_path, token, hub):
    shelf("az", hub)
    issued = json.dumps({"access_token": "issued", "expires_in": 3600, "token_type": "Bearer"}).encode()
    hub.extra["/tenant/oauth2/v2.0/token"] = lambda request: request.answer(200, issued, {"content-type": "application/json"})
    words = {"AZURE_CLIENT_ID": "client", "AZURE_TENANT_ID": "tenant", "AZURE_FEDERATED_TOKEN_FILE": str(token)}
    more = {"AZURE_AUTHORITY_HOST": hub.url, "AZURE_STORAGE_ENDPOINT": f"{hub.url}/account"}
    assert await fetched(tmp_path, hub, "az://account/models/llama", **words, **more) == RIGHT
    assert {headers["authorization"] for headers in hub.asked_for("/account/models")} == {"Bearer issued"}


async def test_gke_s_metadata_server(tmp_path, hub, monkeypatch):
    shelf("gs", hub)
    issued = json.dumps({"access_token": "issued", "expires_in": 3600, "token_type": "Bearer"}).encode()
    where = "/computeMetadata/v1/instance/service-accounts/default/token"
    hub.extra[where] = lambda request: request.answer(200, issued, {"content-type": "application/json"})
    monkeypatch.setenv("GCE_METADATA_HOST", hub.url.removeprefix("http://"))
    assert await fetched(tmp_path, hub, "gs://models/llama", GOOGLE_BASE_URL=hub.url) == RIGHT
    assert {headers["authorization"] for headers in hub.asked_for("/models")} == {"Bearer issued"}
    assert {headers["metadata-flavor"] for headers in hub.asked_for(where)} == {"Google"}


@pytest.mark.parametrize(
    ("uri", "word", "given"),
    [
        ("s3://models/llama", "AWS_ROLE_ARN", {}),
        ("s3://models/llama", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/"}),
        ("az://account/models/llama", "AZURE_CLIENT_ID", {"AZURE_TENANT_ID": "t"}),
    ],
)
async def test_a_pod_without_an_identity_is_told_what_is_missing_and_borrows_none(tmp_path, hub, uri, word, given):
    with pytest.raises(ConfigRejected, match=word):
        await fetcher(tmp_path, hub, **given).fetch(uri, credential=POD_IDENTITY)
    assert hub.asked == []


async def test_without_a_credential_a_pod_s_identity_is_not_used(tmp_path, hub, token):
    """Adapters come from addresses of other people."""
    shelf("s3", hub)
    words = {"AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ENDPOINT_URL": hub.url}
    assert set(words) - {"AWS_ENDPOINT_URL"} <= set(IDENTITY_WORDS)
    await fetcher(tmp_path, hub, **words).fetch("s3://models/llama")
    assert all("authorization" not in headers for _, headers in hub.asked)


async def test_a_named_credential_is_not_replaced_by_the_pod_s_identity(tmp_path, hub, token, monkeypatch):
    """obstore reads the process's environment, too, where platforms put an identity."""
    shelf("az", hub)
    for word, value in (("AZURE_CLIENT_ID", "c"), ("AZURE_TENANT_ID", "t"), ("AZURE_FEDERATED_TOKEN_FILE", str(token))):
        monkeypatch.setenv(word, value)
    made = fetcher(tmp_path, hub)
    made.credential("sas", AZURE_STORAGE_SAS_TOKEN="sv=1&sig=shared", AZURE_STORAGE_ENDPOINT=f"{hub.url}/account")
    await made.fetch("az://account/models/llama", credential="sas")
    assert all("authorization" not in headers for _, headers in hub.asked)
    assert all(query["sig"] == ["shared"] for query in hub.queries)


async def test_an_identity_that_may_not_read_is_forbidden(tmp_path, hub, token):
    denied = b"<Error><Code>AccessDenied</Code></Error>"
    issued = {"AccessKeyId": "A", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}
    hub.extra["/v1/credentials"] = lambda request: request.answer(200, json.dumps(issued).encode())
    hub.extra["/models"] = lambda request: request.answer(403, denied)
    words = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{hub.url}/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token)}
    with pytest.raises(Forbidden):
        await fetched(tmp_path, hub, "s3://models/llama", **words, AWS_ENDPOINT_URL=hub.url)
